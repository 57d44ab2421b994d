# Benchmarks: one command per table. They mean something only on a machine that does nothing else.

BENCH_MODEL ?= build/demo-model

## make bench             the engine against this machine's memory, and what SQL and grammars add, what cached prefixes save (BENCH_MODEL=build/demo-model)
.PHONY: bench bench-engine bench-sql bench-grammar-sql bench-prefix
bench: bench-engine bench-sql bench-grammar-sql bench-prefix

build/demo-model: demo-model
bench-engine: engine $(BENCH_MODEL)
	$(ENGINE_BIN) bench $(BENCH_MODEL)

bench-sql: all $(BENCH_MODEL)
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/sql_overhead.py

bench-grammar-sql: all $(BENCH_MODEL)
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/grammar_overhead.py $(ARGS)

# The folder is made by the engine, as the account that will own it.
bench-prefix: all $(BENCH_MODEL)
	@folder=$$(mktemp -d -u /tmp/dsv3-bench.XXXXXX); \
	PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) -c "dsv3.kv_cache_dir = '$$folder'" \
		-c "dsv3.engine_restart_delay = '50ms'" $(PYTHON) bench/prefix_cache.py $(ARGS); \
	status=$$?; rm -rf "$$folder"; exit $$status

## make bench-extraction  extraction quality of a model on the labelled set; can be stopped and goes on (ARGS="--limit 40")
.PHONY: bench-extraction
bench-extraction: all $(BENCH_MODEL)
	@mkdir -p build/extraction
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/extraction/run.py \
		--records build/extraction/$(notdir $(BENCH_MODEL)).jsonl --json build/extraction/$(notdir $(BENCH_MODEL)).json $(ARGS)

## make bench-extract-all every document of a made set with every schema, each answer checked; goes on where it was stopped (ARGS="--slice 1/20")
.PHONY: bench-extract-all
BENCH_VENV = build/bench-venv
$(BENCH_VENV)/.ready: bench/requirements.txt
	@rm -rf $(BENCH_VENV) && mkdir -p build
	@$(PYTHON) -m venv $(BENCH_VENV) || { echo "no virtual environment could be made: install the package python3-venv"; exit 1; }
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir -r $<
	@touch $@
bench-extract-all: all $(BENCH_MODEL) $(BENCH_VENV)/.ready
	@mkdir -p build/extraction
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) -c "dsv3.weights = 'int8'" \
		$(BENCH_VENV)/bin/python bench/extraction/run_all.py \
		--records build/extraction/all-$(notdir $(BENCH_MODEL)).jsonl $(ARGS)

$(ENGINE_BUILD)/libdsv3grammar.so: $(ENGINE_LIB)
	$(ENGINE_CC) -shared -o $@ -Wl,--whole-archive $< -Wl,--no-whole-archive $(ENGINE_LIBS)

## make bench-grammar     structured output beside xgrammar and llguidance, same schemas and vocabulary (ARGS="--every 10")
.PHONY: bench-grammar
bench-grammar: $(ENGINE_BUILD)/libdsv3grammar.so $(GRAMMAR_VENV)/.ready $(GRAMMAR_DATA)/.ready
	@$(GRAMMAR_VENV)/bin/python bench/grammar/compare.py $(ARGS) $(ENGINE_BUILD)/libdsv3grammar.so $(GRAMMAR_DATA)/tokenizer.json \
		$(GRAMMAR_DATA)/maskbench

## make bench-batch       a query's rows one by one against read ahead (ARGS="--rows 200 --turn 50" for a short form)
.PHONY: bench-batch
bench-batch: all $(BENCH_MODEL)
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/read_ahead.py $(ARGS)

## make bench-audit       requests per second of 64 sessions with the audit log and without, in turn (ARGS="--rounds 3 --seconds 10")
.PHONY: bench-audit
bench-audit: all $(BENCH_MODEL)
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) -c 'fsync = on' -c 'max_connections = 200' $(PYTHON) bench/audit_cost.py $(ARGS)
