# dsv3: a PostgreSQL extension (library, built by PGXS) and its engine (the `dsv3` executable, built here).
#
#   make, make install, make installcheck    as for any PGXS extension; PG_CONFIG chooses the server
#   make quickstart / make quickstart-stop   everything from nothing, with a demo model
#   make check                               everything that needs no GPU
#   make help                                the other targets

MODULE_big = dsv3
EXTENSION = dsv3
PGFILEDESC = "dsv3 - a language model beside the database"
DATA = $(wildcard sql/dsv3--*.sql)
OBJS = $(patsubst %.c,%.o,$(wildcard src/pg/*.c)) src/common/protocol.o
PG_CPPFLAGS = -I$(srcdir)/src
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Wno-sign-compare

# Regression inputs live beside the scripts in sql/, named one by one.
REGRESS = $(patsubst %,%,$(DSV3_REGRESS))
EXTRA_CLEAN = build

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)

all: engine

include test/regress.mk
include $(PGXS)
include src/engine.mk
include test/test.mk
include tools/tools.mk
include bench/bench.mk
