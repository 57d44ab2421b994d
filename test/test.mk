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
