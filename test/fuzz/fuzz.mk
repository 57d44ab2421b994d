# Fuzzing with clang's libFuzzer: each test/fuzz/fuzz_NAME.c is one target, seeded from test/fuzz/seeds/NAME.
# Everything is built with clang, AddressSanitizer and UBSan in build/fuzz; the corpus grows in build/fuzz/corpus/NAME and
# what crashes is left in build/fuzz/crashes.

FUZZ_NAMES := $(patsubst test/fuzz/fuzz_%.c,%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ ?= $(FUZZ_NAMES)
FUZZ_SECONDS = $(or $(SECONDS),60)
FUZZ_BUILD = build/fuzz
FUZZ_SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all

.PHONY: fuzz fuzz-build
## make fuzz              fuzz the readers of hostile input with clang: FUZZ="safetensors config" SECONDS=60
fuzz:
	+@$(MAKE) --no-print-directory fuzz-build ENGINE_BUILD=$(FUZZ_BUILD) ENGINE_CC=clang ENGINE_OPT='-O1 -g' \
		ENGINE_SANITIZE='-fsanitize=fuzzer-no-link $(FUZZ_SANITIZE)'
	@mkdir -p $(FUZZ_BUILD)/crashes
	@for name in $(FUZZ); do \
		mkdir -p $(FUZZ_BUILD)/corpus/$$name; \
		echo "fuzz $$name: $(FUZZ_SECONDS) s"; \
		$(FUZZ_BUILD)/fuzz_$$name -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
			-verbosity=0 -artifact_prefix=$(FUZZ_BUILD)/crashes/$$name- $(FUZZ_BUILD)/corpus/$$name test/fuzz/seeds/$$name || exit 1; \
	done

fuzz-build: $(FUZZ_NAMES:%=$(ENGINE_BUILD)/fuzz_%)

$(ENGINE_BUILD)/fuzz_%: test/fuzz/fuzz_%.c $(ENGINE_LIB)
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) -fsanitize=fuzzer -o $@ $< $(ENGINE_LIB) $(ENGINE_LIBS)

# No fuzz target runs the vector kernels, and clang takes many minutes to instrument their unrolled tiles.
$(FUZZ_BUILD)/kernels/ops_avx2.o $(FUZZ_BUILD)/kernels/ops_avx512.o: override ENGINE_SANITIZE =
