# dsv3: a PostgreSQL extension (library, built by PGXS) and its engine (the `dsv3` executable, built here).
# `make help` lists the targets: it prints the comments that start with two number signs.
#
## make                   build the extension library and the engine; PG_CONFIG chooses the server (14 to 18)
## make install           install both (as root where the server's folders need it; DESTDIR as usual)
## make installcheck      regression tests against a running server that preloads dsv3
## make clean             remove all that was built, the quickstart server with it

## make check             everything that needs no GPU: builds, tests, sanitizers, lint; as root it installs what it needs
ifneq ($(filter check,$(MAKECMDGOALS)),)
# PGXS has a target of this name that only refuses, so this one stands alone; goals named beside it are made first.
BESIDE := $(filter-out check,$(MAKECMDGOALS))
.PHONY: check $(BESIDE)
check: $(BESIDE)
	@MAKE='$(MAKE)' PG_CONFIG='$(or $(PG_CONFIG),pg_config)' tools/check.sh $(STAGES)
$(BESIDE):
	@$(MAKE) --no-print-directory $@
else

MODULE_big = dsv3
EXTENSION = dsv3
PGFILEDESC = "dsv3 - a language model beside the database"
DATA = $(wildcard sql/dsv3--*.sql)
PG_SRC = $(wildcard src/pg/*.c)
OBJS = $(PG_SRC:.c=.o) src/common/protocol.o src/common/error.o
PG_CPPFLAGS = -I$(srcdir)/src
SHLIB_LINK = -lcrypto
# PostgreSQL 16 and later warn of this by themselves, where gcc compiles; clang does not know it.
PG_SHADOW = $(if $(findstring clang,$(CC)),,-Wshadow=compatible-local)
# -MMD: PGXS on most distributions tracks no headers by itself.
PG_CFLAGS = -Wall -Wextra $(PG_SHADOW) -Wno-unused-parameter -Wno-missing-field-initializers -Wno-sign-compare $(WERROR) -MMD -MP

# Regression inputs live beside the scripts in sql/, named one by one.
REGRESS = $(DSV3_REGRESS)
EXTRA_CLEAN = build $(OBJS:.o=.d)

PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
# Debian's numpy belongs to Debian's python, which need not be the first in PATH.
PYTHON ?= $(if $(wildcard /usr/lib/python3/dist-packages/numpy),/usr/bin/python3,python3)

all: engine

include test/regress.mk
ifneq ($(PGXS),)
include $(PGXS)

# Objects are made again when the server, the compiler or a flag changes (-Werror changes no object).
$(OBJS): build/library.flags
build/library.flags: FORCE
	@mkdir -p build
	@echo '$(CC) $(CPPFLAGS) $(filter-out -Werror,$(CFLAGS)) $(VERSION)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
-include $(OBJS:.o=.d)
else
# Without a server's development files the engine alone can be built, and what brings the files along can run.
CC ?= cc
all install uninstall installcheck: no-pgxs
.PHONY: no-pgxs
no-pgxs:
	@echo 'make: no PostgreSQL development files: "$(PG_CONFIG) --pgxs" names no file.' >&2
	@echo 'Install them (Debian 12: apt-get install postgresql-server-dev-15), or say PG_CONFIG=/path/to/pg_config.' >&2
	@echo '"make quickstart" and "make check", run as root, install all that they need.' >&2
	@exit 1
clean: ; rm -rf $(EXTRA_CLEAN)
endif

FORCE:
.PHONY: FORCE

include src/engine.mk
include test/test.mk
include tools/tools.mk
include tools/quality.mk
include bench/bench.mk

## make quickstart        from nothing to a running server with a demo model, and its first answers
## make quickstart-stop   stop that server
## make help              this list
.PHONY: quickstart quickstart-stop quickstart-remove help
quickstart quickstart-stop:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' tools/quickstart.sh $(patsubst quickstart-%,%,$(@:quickstart=quickstart-start))
quickstart-remove:
	@tools/quickstart.sh remove
clean: quickstart-remove
help:
	@sed -n -e 's/^## //p' -e 's/^\([a-z-]*\):.* ## \(.*\)/make \1  \2/p' $(filter-out /%,$(MAKEFILE_LIST)) | \
		awk -F '  +' '{ printf "%-23s %s\n", $$1, $$2 }'

endif
