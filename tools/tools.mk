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
