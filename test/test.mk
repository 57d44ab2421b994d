# Test targets. Unit tests: each test/unit/test_*.c is one cmocka program linked with the engine library.

UNIT_SRC := $(wildcard test/unit/test_*.c)
UNIT_BIN := $(patsubst test/unit/%.c,$(ENGINE_BUILD)/unit/%,$(UNIT_SRC))

$(ENGINE_BUILD)/unit/%: test/unit/%.c $(ENGINE_LIB)
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) -Itest/unit -o $@ $< $(ENGINE_LIB) -lcmocka $(ENGINE_LIBS)

.PHONY: unit check-unit
unit: $(UNIT_BIN)
check-unit: unit
	CMOCKA_MESSAGE_OUTPUT=TAP prove --exec '' $(UNIT_BIN)

# The misbehaving engine that tests of the supervisor run (its modes are listed at its top).
TEST_ENGINE = $(ENGINE_BUILD)/test/dsv3-hostile
$(ENGINE_BUILD)/test/dsv3-hostile: test/engine/hostile.c $(ENGINE_LIB)
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) -o $@ $< $(ENGINE_LIB) $(ENGINE_LIBS)

.PHONY: test-engines
test-engines: $(TEST_ENGINE)
unit: test-engines $(ENGINE_BIN)
