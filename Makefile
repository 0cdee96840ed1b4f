# The dlock extension and the dlock command.
#
#   make                 build the library and the command
#   make install         install them into the directories of the server that PG_CONFIG names
#   make installcheck    test the installed library on private servers
#   make test            everything a newcomer needs: packages, build, all tests; installs nothing
#   make demo            a private throw-away server with the story of a lease
#   make bench           compare with the usual alternatives
#   make proof S=600     attack the promises of doc/proof.md for so many seconds
#   make proof-model     check the model of grants and hand-offs, with spin
#   make proof-ha        fail over with Patroni and etcd, shard with PL/Proxy
#   make test-versions   the tests on the other supported major versions

EXTENSION = dlock
DATA := $(sort $(wildcard sql/dlock--*.sql))

MODULE_big = dlock
# The rooms of the library; src/README has the map.
rooms := base store space lock session fence worker pattern sql
sources := $(sort $(wildcard src/*.c) $(wildcard $(rooms:%=src/%/*.c)))
OBJS := $(sources:.c=.o)
PG_CPPFLAGS = -I$(srcdir)/src

REGRESS := $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
ISOLATION := $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))

# The library must be preloaded, so the tests start servers of their own.
# Not in tmp_check, which the rules for TAP tests remove.
REGRESS_OPTS = --inputdir=test --encoding=UTF8 \
	--temp-instance=./tmp_check_regress --temp-config=test/dlock.conf
ISOLATION_OPTS = --inputdir=test --encoding=UTF8 \
	--temp-instance=./tmp_check_isolation --temp-config=test/dlock.conf

ifneq ($(wildcard test/t/*.pl),)
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl
endif

EXTRA_CLEAN = src/.built_for tmp_check_regress tmp_check_isolation tmp_test tmp_demo tmp_bench \
	$(wildcard test/bench/noop/*.o test/bench/noop/*.bc test/bench/noop/*.so)

PG_CONFIG = pg_config

# These set up what they need, a server's development files among it, so they
# must not ask for pg_config before.
scripts := test demo stop-demo bench proof proof-model proof-ha test-versions
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(scripts),$(MAKECMDGOALS)),all),)
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) was not found: install the development files of the server, or say PG_CONFIG=/path/to/pg_config)
endif
include $(PGXS)

# Servers are rarely configured with --enable-depend.
objects := $(OBJS) $(OBJS:.o=.bc)
$(objects): $(sort $(wildcard src/*.h $(rooms:%=src/%/*.h))) src/.built_for

# Changes with the server and the options, so that objects compiled for others
# are not linked.
built_for = $(VERSION) $(CC) $(CPPFLAGS) $(CFLAGS)
src/.built_for: force
	@echo '$(built_for)' | cmp -s - $@ || echo '$(built_for)' >$@
force:
.PHONY: force

# The data of the demo's server goes, so the server has to go first.
clean: stop-demo

# The command has a Makefile of its own, for it is linked with libpq and nothing else.
all: all-cli
install: install-cli
uninstall: uninstall-cli
clean: clean-cli
all-cli install-cli uninstall-cli clean-cli:
	$(MAKE) -C src/cli PG_CONFIG='$(PG_CONFIG)' DESTDIR='$(DESTDIR)' CC='$(CC)' COPT='$(COPT)' $(@:-cli=)
.PHONY: all-cli install-cli uninstall-cli clean-cli
endif

# PG_CONFIG of the command line reaches them in the environment.
test:
	@test/run

demo:
	@test/demo

stop-demo:
	@test/demo stop

bench:
	@test/bench/run

# Those tests that prove more the longer they run.
S = 300
proof:
	@DLOCK_PROOF_SECONDS=$(S) TESTS='180_history 182_fuzz 183_power_loss' test/run

proof-model:
	@test/proof/model/run

proof-ha:
	@test/proof/ha/run

test-versions:
	@test/versions

.PHONY: $(scripts)
