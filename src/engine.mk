# The engine: every layer below PostgreSQL in one static library, and the `dsv3` executable on top.
# Objects go to build/engine so that they never mix with the library's. Files named *_avx2.c and *_avx512.c get their
# instruction set; everything else is built for the base CPU, and the kernel table is chosen at run time.

ENGINE_BUILD ?= build/engine
ENGINE_CC ?= $(CC)
ENGINE_OPT ?= -O3 -g
ENGINE_SANITIZE ?=
ENGINE_WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
	-Wno-missing-field-initializers
WERROR ?=
# -ffp-contract=off: a fused multiply-add is written where it is meant, so results never depend on the compiler.
ENGINE_CFLAGS = -std=gnu11 -D_GNU_SOURCE $(ENGINE_OPT) $(ENGINE_WARN) $(WERROR) $(ENGINE_SANITIZE) -ffp-contract=off \
	-fno-math-errno -fPIC -pthread -Isrc -MMD -MP
ENGINE_LIBS = -lpcre2-8 -ljansson -lcrypto -lseccomp -lm -ldl -pthread

ENGINE_SRC := $(wildcard src/common/*.c src/kernels/*.c src/model/*.c src/text/*.c src/grammar/*.c src/engine/*.c)
ENGINE_OBJ := $(patsubst src/%.c,$(ENGINE_BUILD)/%.o,$(ENGINE_SRC))
CLI_SRC := $(wildcard src/cli/*.c)
CLI_OBJ := $(patsubst src/%.c,$(ENGINE_BUILD)/%.o,$(CLI_SRC))
ENGINE_LIB = $(ENGINE_BUILD)/libdsv3engine.a
ENGINE_BIN = $(ENGINE_BUILD)/dsv3

.PHONY: engine install-engine uninstall-engine
engine: $(ENGINE_BIN)

$(ENGINE_BUILD)/%_avx2.o: ISA_FLAGS = -mavx2 -mfma -mf16c
$(ENGINE_BUILD)/%_avx512.o: ISA_FLAGS = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c

# Objects are made again when the compiler or a flag changes (-Werror changes no object).
$(ENGINE_BUILD)/engine.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(ENGINE_CC) $(filter-out -Werror,$(ENGINE_CFLAGS))' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(ENGINE_BUILD)/%.o: src/%.c $(ENGINE_BUILD)/engine.flags
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) $(ISA_FLAGS) -c -o $@ $<

$(ENGINE_LIB): $(ENGINE_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(ENGINE_BIN): $(CLI_OBJ) $(ENGINE_LIB)
	$(ENGINE_CC) $(ENGINE_SANITIZE) -o $@ $(CLI_OBJ) $(ENGINE_LIB) $(ENGINE_LIBS)

-include $(ENGINE_OBJ:.o=.d) $(CLI_OBJ:.o=.d)

# The executable goes beside the server's own programs, where dsv3.engine_path looks by default.
install: install-engine
install-engine: $(ENGINE_BIN)
	$(MKDIR_P) '$(DESTDIR)$(bindir)'
	$(INSTALL_PROGRAM) $(ENGINE_BIN) '$(DESTDIR)$(bindir)/dsv3'
uninstall: uninstall-engine
uninstall-engine:
	rm -f '$(DESTDIR)$(bindir)/dsv3'
