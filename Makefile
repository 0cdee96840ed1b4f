# The dlock extension and the dlock command.
#
#   make                 build the library and the command
#   make install         install them into the directories of the server that PG_CONFIG names
#   make installcheck    test the installed library on private servers
#   make test            everything a newcomer needs: packages, build, tests; installs nothing
#   make nightly         all tests on all versions, and all that attacks the promises; hours
#   make demo            a private throw-away server with the story of a lease
#   make bench           compare with the usual alternatives
#   make proof S=600     attack the promises of doc/explanation/proof.md for so many seconds
#   make proof-soak      20 minutes of mixed load with faults: does anything grow?
#   make proof-model     check the models of grants, hand-offs and places, with spin
#   make proof-mutants   make mistakes in the code, and see the tests find them
#   make proof-ha        fail over with Patroni and etcd, shard with PL/Proxy
#   make proof-builds    the tests with undefined behaviour and misuse of memory trapped, with
#                        a server that checks assertions, and with a report of the lines executed
#   make test-versions   the tests on the other supported major versions
#   make test-bare       make demo and a few tests on bare Debian machines
#   make test-packages   build, install and test Debian's packages
#   make plain           dlock_plain.sql, the edition for servers that load no library
#   make release-check   what stands in the way of a release
#   make dist            the archive of a release, for PGXN
#
# It builds elsewhere, too: call it from there with make -f /path/to/Makefile.

# Where the sources are.  PGXS says the same, but too late for the wildcards.
srcdir := $(or $(VPATH),$(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST)))))
sources_of = $(sort $(patsubst $(srcdir)/%,%,$(wildcard $(addprefix $(srcdir)/,$(1)))))

EXTENSION = dlock
DATA := $(call sources_of,sql/dlock--*--*.sql)

# The install script, made of the engine's part, that of the patterns, and what closes it.
script := sql/dlock--$(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(srcdir)/dlock.control).sql
script_parts := $(addprefix $(srcdir)/,sql/engine.sql sql/patterns.sql sql/privileges.sql)
DATA_built := $(script)

MODULE_big = dlock
# The rooms of the library; src/README has the map.
rooms := base store space lock session fence worker sql
sources := $(call sources_of,src/*.c $(rooms:%=src/%/*.c))
PG_CPPFLAGS = -I$(srcdir)/src

# A library for tests, with the fault points of src/base/fault.h: make FAULTS=1.
ifdef FAULTS
PG_CPPFLAGS += -DDLOCK_FAULTS -include $(srcdir)/test/modules/fault_points.h
sources += test/modules/fault_points.c test/modules/fault_clock.c test/modules/fault_counts.c
endif
OBJS := $(patsubst %.c,%.o,$(sources))

REGRESS := $(patsubst test/sql/%.sql,%,$(call sources_of,test/sql/*.sql))
ISOLATION := $(patsubst test/specs/%.spec,%,$(call sources_of,test/specs/*.spec))

# The library must be preloaded, so the tests start servers of their own.
# Not in tmp_check, which the rules for TAP tests remove.
REGRESS_OPTS = --inputdir=$(srcdir)/test --encoding=UTF8 \
	--temp-instance=./tmp_check_regress --temp-config=$(srcdir)/test/dlock.conf
ISOLATION_OPTS = --inputdir=$(srcdir)/test --encoding=UTF8 \
	--temp-instance=./tmp_check_isolation --temp-config=$(srcdir)/test/dlock.conf

TAP_TESTS = 1
PROVE_TESTS = test/t/*/*.pl

EXTRA_CLEAN = src/.built_for tmp_check_regress tmp_check_isolation tmp_test tmp_demo tmp_bench dlock_plain.sql \
	$(wildcard test/bench/noop/*.o test/bench/noop/*.bc test/bench/noop/*.so) \
	dlock-*.zip

PG_CONFIG = pg_config

# Tests of test/t that prove more the longer they run; S says how many seconds.
timed_proofs := proof-history proof-fuzz proof-power proof-soak

# These set up what they need, a server's development files among it, so they
# must not ask for pg_config before.
scripts := test demo stop-demo bench proof $(timed_proofs) proof-model proof-mutants proof-ha proof-plproxy \
	proof-pgbouncer proof-builds test-versions test-bare test-packages nightly release-check dist plain
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(scripts),$(MAKECMDGOALS)),all),)
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) was not found: install the development files of the server, or say PG_CONFIG=/path/to/pg_config)
endif
include $(PGXS)

# From 16 on the server's own flags hide what is not exported.  A module of the tests
# calls the library with fault points.
ifeq ($(MAJORVERSION) $(PORTNAME) $(FAULTS),15 linux )
SHLIB_LINK += -Wl,--version-script=$(srcdir)/src/exports.map
endif

$(script): $(script_parts)
	@mkdir -p $(@D)
	cat $^ >$@

# Servers are rarely configured with --enable-depend.
objects := $(OBJS) $(OBJS:.o=.bc)
$(objects): $(call sources_of,src/*.h $(rooms:%=src/%/*.h) test/modules/*.h) $(CURDIR)/src/.built_for

# Changes with the server and the options, so that objects compiled for others
# are not linked.  By its full name, or make would take that of the sources.
built_for = $(VERSION) $(CC) $(CPPFLAGS) $(CFLAGS)
$(CURDIR)/src/.built_for: force
	@mkdir -p $(sort $(dir $(OBJS)))
	@echo '$(built_for)' | cmp -s - $@ || echo '$(built_for)' >$@
force:
.PHONY: force

# The data of the demo's server goes, so the server has to go first.
clean: stop-demo

# The command has a Makefile of its own, for it is linked with libpq and nothing else.
# with_cli=no leaves it out.
ifneq ($(with_cli),no)
all: all-cli
install: install-cli
uninstall: uninstall-cli
clean: clean-cli
all-cli install-cli uninstall-cli clean-cli:
	@mkdir -p src/cli
	$(MAKE) -C src/cli -f '$(abspath $(srcdir))/src/cli/Makefile' PG_CONFIG='$(PG_CONFIG)' \
		DESTDIR='$(DESTDIR)' CC='$(CC)' COPT='$(COPT)' $(@:-cli=)
.PHONY: all-cli install-cli uninstall-cli clean-cli
endif
endif

# PG_CONFIG of the command line reaches them in the environment.
test:
	@$(srcdir)/test/run

demo:
	@$(srcdir)/test/demo

stop-demo:
	@$(srcdir)/test/demo stop

bench:
	@$(srcdir)/test/bench/run

S = 300
proof: timed_tests = history fuzz power_loss
proof-history: timed_tests = history
proof-fuzz: timed_tests = fuzz
proof-power: timed_tests = power_loss
proof-soak: timed_tests = soak
proof-soak: S = 1200
proof $(timed_proofs):
	@DLOCK_PROOF_SECONDS=$(S) TESTS='$(timed_tests)' $(srcdir)/test/run

proof-model:
	@$(srcdir)/test/proof/model/run

proof-mutants:
	@$(srcdir)/test/proof/matrix/run

proof-ha:
	@$(srcdir)/test/proof/ha/run

# PARTS='asan' and the like: some of them.
proof-builds:
	@$(srcdir)/test/proof/builds/run $(PARTS)

proof-plproxy:
	@HA_ONLY=shards $(srcdir)/test/proof/ha/run

proof-pgbouncer:
	@TESTS=cli_pooler $(srcdir)/test/run

nightly:
	@PARTS='$(PARTS)' $(srcdir)/test/nightly

test-versions:
	@$(srcdir)/test/versions

test-bare:
	@$(srcdir)/test/bare

test-packages:
	@$(srcdir)/test/packages

release-check:
	@$(srcdir)/packaging/release_check

dist:
	@$(srcdir)/packaging/dist

plain:
	$(srcdir)/packaging/plain >dlock_plain.sql

.PHONY: $(scripts)
