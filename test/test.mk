# Test targets. Unit tests: each test/unit/test_*.c is one cmocka program linked with the engine library.

UNIT_SRC := $(wildcard test/unit/test_*.c)
UNIT_BIN := $(patsubst test/unit/%.c,$(ENGINE_BUILD)/unit/%,$(UNIT_SRC))

$(ENGINE_BUILD)/unit/%: test/unit/%.c $(ENGINE_LIB)
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) -Itest/unit -o $@ $< $(ENGINE_LIB) -lcmocka $(ENGINE_LIBS)

.PHONY: unit check-unit
unit: $(UNIT_BIN)
check-unit: unit tiny-model draft-model
	CMOCKA_MESSAGE_OUTPUT=TAP prove --exec '' $(UNIT_BIN)

# The misbehaving engine that tests of the supervisor run (its modes are listed at its top).
TEST_ENGINE = $(ENGINE_BUILD)/test/dsv3-hostile
$(ENGINE_BUILD)/test/dsv3-hostile: test/engine/hostile.c $(ENGINE_LIB)
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) -o $@ $< $(ENGINE_LIB) $(ENGINE_LIBS)

.PHONY: test-engines
test-engines: $(TEST_ENGINE)
unit: test-engines $(ENGINE_BIN)

# Tests that need PostgreSQL; each suite runs on servers of its own, see test/server.sh. TESTS= names some of a suite.
## make check-regress     SQL regression tests (TESTS="api stream" for some; likewise below)
## make check-isolation   tests of several sessions
## make check-pgtap       the catalogue: signatures, grants, comments
## make check-tap         tests that start, kill and stop servers and engines
.PHONY: check-regress check-isolation check-pgtap check-tap
check-regress:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' test/server.sh regress $(or $(TESTS),$(DSV3_REGRESS))
check-isolation:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' test/server.sh isolation $(or $(TESTS),$(DSV3_ISOLATION))
check-pgtap:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' test/server.sh pgtap $(or $(TESTS),$(DSV3_PGTAP))
check-tap:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' test/server.sh tap $(or $(TESTS),$(DSV3_TAP))

## make check-jobs-crash  a job of 100,000 rows, killed with everything around it 100 times
.PHONY: check-jobs-crash
check-jobs-crash:
	@DSV3_JOB_ROWS=$${DSV3_JOB_ROWS:-100000} DSV3_JOB_KILLS=$${DSV3_JOB_KILLS:-100} $(MAKE) --no-print-directory check-tap \
		TESTS=test/t/017_jobs_crash.pl

## make check-audit-crash the audit log while everything around it is killed: 10,000 requests of 100 sessions (AUDIT_SEED= repeats)
.PHONY: check-audit-crash
check-audit-crash:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' AUDIT_REQUESTS=$(or $(AUDIT_REQUESTS),10000) AUDIT_SESSIONS=$(or $(AUDIT_SESSIONS),100) \
		test/server.sh tap test/t/016_audit_crash.pl

## make check-torture     PostgreSQL's own regression tests with dsv3, and with every function read ahead (SOURCE=its source tree)
.PHONY: check-torture
check-torture:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' test/batch/torture.sh $(SOURCE) $(TESTS)

## make check-grammar     structured output against JSON-Schema-Test-Suite and MaskBench, random answers, budgets
.PHONY: check-grammar
check-grammar: engine
	prove --exec '$(or $(PYTHON),python3)' test/grammar/suites.t

# Peers and other opinions, and the public data, for `make bench-grammar` and `make soak-grammar`.
GRAMMAR_VENV = build/grammar-venv
GRAMMAR_DATA = build/grammar-data
$(GRAMMAR_VENV)/.ready: bench/grammar/requirements.txt
	@rm -rf $(GRAMMAR_VENV) && mkdir -p build
	@$(PYTHON) -m venv $(GRAMMAR_VENV)
	@$(GRAMMAR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@$(GRAMMAR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps xgrammar==0.2.9 || \
		echo "xgrammar cannot be installed here; it will be left out"
	@touch $@
$(GRAMMAR_DATA)/.ready:
	@mkdir -p $(GRAMMAR_DATA)
	@for name in maskbench-dev deepseek-v3-tokenizer; do \
		tar -xJf "$${DSV3_SHARED:-../shared}/data/$$name.tar.xz" -C $(GRAMMAR_DATA) || exit 1; done
	@touch $@

## make soak-grammar      a million random answers, checked by jsonschema and as jsonb (ARGS="--walks 50000 --seed 2")
.PHONY: soak-grammar
soak-grammar: all $(GRAMMAR_VENV)/.ready $(GRAMMAR_DATA)/.ready
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh $(GRAMMAR_VENV)/bin/python test/grammar/soak.py $(ARGS) $(GRAMMAR_DATA)/maskbench

## make check-deploy      deploy/ with Prometheus, promtool and postgres_exporter; pictures for the docs with ARGS="--pictures docs/pictures"
.PHONY: check-deploy
check-deploy: all tiny-model
	@tools/setup.sh deploy
	@PG_CONFIG='$(PG_CONFIG)' test/with_server.sh -m build/tiny-model $(PYTHON) test/deploy/deploy.py $(ARGS)

## make check-extraction  the labelled extraction set and its scoring
.PHONY: check-extraction
check-extraction: engine
	PYTHON='$(or $(PYTHON),python3)' prove test/quality/scoring.t

include test/fuzz/fuzz.mk

# Many sessions for a short while on the tiny model; `make soak` is the long form on the demo model.
.PHONY: check-soak soak
check-soak: tiny-model
	prove test/soak/soak.t
soak: demo-model
	SOAK_MODEL=build/demo-model SOAK_SECONDS=600 prove -v test/soak/soak.t
