# Benchmarks: one command per table. They mean something only on a machine that does nothing else.

BENCH_MODEL ?= build/demo-model

## make bench             the engine against this machine's memory, and what SQL adds to it (BENCH_MODEL=build/demo-model)
.PHONY: bench bench-engine bench-sql
bench: bench-engine bench-sql

build/demo-model: demo-model
bench-engine: engine $(BENCH_MODEL)
	$(ENGINE_BIN) bench $(BENCH_MODEL)

bench-sql: all $(BENCH_MODEL)
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/sql_overhead.py

## make bench-extraction  extraction quality of a model on the labelled set; can be stopped and goes on (ARGS="--limit 40")
.PHONY: bench-extraction
bench-extraction: all $(BENCH_MODEL)
	@mkdir -p build/extraction
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m $(BENCH_MODEL) $(PYTHON) bench/extraction/run.py \
		--records build/extraction/$(notdir $(BENCH_MODEL)).jsonl --json build/extraction/$(notdir $(BENCH_MODEL)).json $(ARGS)
