# The whole build of Kolo: one file, no configure step, nothing written outside build/.
# `make help` lists the targets.  Settings go on the command line: make PROFILE=debug CC=clang V=1

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- settings ---------------------------------------------------------------------------------

PROFILE ?= release
BUILD ?= build/$(PROFILE)
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKG_CONFIG ?= pkg-config
CLANG ?= clang
CLANG_FORMAT ?= clang-format
OBJCOPY ?= objcopy
INSTALL ?= install
FUZZ_SECONDS ?= 20
# The tests that `make test`, asan and tsan run; default all.
T ?= $(notdir $(basename $(wildcard tests/test_*.c)))

CFLAGS_release := -O2 -g
CFLAGS_debug := -O0 -g3
CFLAGS_asan := -O1 -g -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -fno-omit-frame-pointer
CFLAGS_fuzz := -O1 -g -fno-omit-frame-pointer
SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=all
SANITIZE_tsan := -fsanitize=thread
SANITIZE_fuzz := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all
ifndef CFLAGS_$(PROFILE)
$(error PROFILE is release, debug, asan, tsan or fuzz, not '$(PROFILE)')
endif

CFLAGS ?= $(CFLAGS_$(PROFILE))
SANITIZE := $(SANITIZE_$(PROFILE))
# Deadline of one test program.
TEST_SECONDS ?= $(if $(SANITIZE),300,120)
WARNINGS := -Wall -Wextra -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes
ifeq ($(WERROR),1)
WARNINGS += -Werror
endif
LIBS := -pthread -ldl -lm
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(Q),@printf '  %-6s %s\n' $(1) $(2))
PARALLEL = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

version = $(shell sed -n 's/^#define KOLO_VERSION_$(1) //p' include/kolo.h)
MAJOR := $(call version,MAJOR)
VERSION := $(MAJOR).$(call version,MINOR).$(call version,PATCH)
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))

# ---- sources ----------------------------------------------------------------------------------

# A platform is a file: what does not fit this one is left out.
SKIP_x86_64 := lib/reduce_neon.c
SKIP_aarch64 := lib/reduce_avx2.c lib/reduce_avx512.c
SKIP := $(if $(SKIP_$(ARCH)),$(SKIP_$(ARCH)),$(SKIP_x86_64) $(SKIP_aarch64))

# hwloc is used when it is there; HWLOC=0 leaves it out.
HWLOC ?= $(shell $(PKG_CONFIG) --exists hwloc 2>/dev/null && echo 1 || echo 0)
ifneq ($(wildcard lib/topo_hwloc.c),)
ifeq ($(HWLOC),1)
SKIP += lib/topo_nohwloc.c
HWLOC_CFLAGS := $(shell $(PKG_CONFIG) --cflags hwloc)
LIBS += $(shell $(PKG_CONFIG) --libs hwloc)
else
SKIP += lib/topo_hwloc.c
endif
endif

SRC := $(filter-out $(SKIP),$(sort $(wildcard lib/*.c transports/*.c)))
BENCH := $(wildcard bench/kolo_*.c)
BENCH_PART := $(wildcard bench/bench_*.c)
EXAMPLE := $(wildcard examples/*.c)
HELPER := $(wildcard tests/support/*_hello.c tests/support/hello_*.c tests/support/prog_*.c)
DRIVER := tests/support/test_driver.c
SUPPORT := $(filter-out $(HELPER) $(DRIVER),$(wildcard tests/support/*.c))
FUZZ := $(wildcard tests/fuzz/*.c)
STRESS := $(wildcard tests/stress*.c)

# Criterion cannot start under ThreadSanitizer and does not fail on leaks: those profiles run the
# tests in the process of a small driver instead.
ifneq ($(SANITIZE),)
SUPPORT += $(wildcard $(DRIVER))
TEST_CPPFLAGS := -DKOLO_TEST_DRIVER
else
TEST_LIBS := -lcriterion
endif

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
OBJ := $(call obj,$(SRC))
PROG := $(patsubst bench/%.c,$(BUILD)/%,$(BENCH))
EXAMPLE_PROG := $(patsubst %.c,$(BUILD)/%,$(EXAMPLE))
HELPER_PROG := $(patsubst tests/support/%.c,$(BUILD)/%,$(HELPER))
TEST_PROG := $(patsubst %,$(BUILD)/tests/%,$(T))
FUZZ_PROG := $(patsubst tests/%.c,$(BUILD)/%,$(FUZZ))
STRESS_PROG := $(BUILD)/stress

A := $(BUILD)/libkolo.a
SO := $(BUILD)/libkolo.so
# All objects with their private names, for tests: only what a test uses is linked into it.
INTERNAL := $(BUILD)/internal.a
PACKAGE := $(addprefix $(BUILD)/,kolo.pc KoloConfig.cmake KoloConfigVersion.cmake)

# ---- flags ------------------------------------------------------------------------------------

COMPILE := -D_GNU_SOURCE= $(CPPFLAGS) -std=gnu11 $(WARNINGS) $(CFLAGS) $(SANITIZE) -pthread
LINK := $(CFLAGS) $(SANITIZE) $(LDFLAGS)
LIB_FLAGS := -Iinclude -Ilib -Itransports -fPIC -fvisibility=hidden
TEST_FLAGS := -Iinclude -Ilib -Itransports -Itests $(TEST_CPPFLAGS) \
	-DTEST_BUILD_DIR='"$(abspath $(BUILD))"'
# Sums must not depend on what the compiler fuses; only release buys speed with size.
REDUCE_FLAGS := $(if $(filter release,$(PROFILE)),-O3) -ffp-contract=off
AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c

$(BUILD)/lib/%.o $(BUILD)/transports/%.o: WHERE := $(LIB_FLAGS)
$(BUILD)/bench/%.o $(BUILD)/examples/%.o: WHERE := -Iinclude
$(BUILD)/tests/%.o: WHERE := $(TEST_FLAGS)
$(BUILD)/lib/reduce.o $(BUILD)/lib/reduce_%.o: EXTRA := $(REDUCE_FLAGS)
$(BUILD)/lib/reduce_avx2.o: EXTRA := $(REDUCE_FLAGS) $(AVX2_FLAGS)
$(BUILD)/lib/reduce_avx512.o: EXTRA := $(REDUCE_FLAGS) $(AVX512_FLAGS)
$(BUILD)/lib/topo_hwloc.o: EXTRA := $(HWLOC_CFLAGS)

# Stamps, rewritten only when their text changes, so that other flags or sources rebuild.
define FLAGS_TEXT
$(CC) $(shell $(CC) --version 2>/dev/null | head -n 1)
$(COMPILE) $(LIB_FLAGS) $(TEST_FLAGS) $(HWLOC_CFLAGS)
$(REDUCE_FLAGS) $(AVX2_FLAGS) $(AVX512_FLAGS)
endef
define LINK_TEXT
$(CC) $(LINK) $(LIBS) $(TEST_LIBS) $(VERSION)
$(SRC) $(BENCH_PART) $(SUPPORT) $(STRESS)
endef
PACKAGE_TEXT = $(PREFIX) $(LIBDIR) $(INCLUDEDIR) $(VERSION) $(LIBS)
$(BUILD)/flags: export STAMP := $(FLAGS_TEXT)
$(BUILD)/link: export STAMP := $(LINK_TEXT)
$(BUILD)/package: export STAMP := $(PACKAGE_TEXT)
$(BUILD)/flags $(BUILD)/link $(BUILD)/package: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' "$$STAMP" | cmp -s - $@ || printf '%s\n' "$$STAMP" > $@
FORCE:

# ---- rules ------------------------------------------------------------------------------------

.PHONY: all programs tests
all: $(A) $(if $(SANITIZE),,$(SO)) $(PACKAGE) programs ## build the library, programs and examples
programs: $(PROG) $(EXAMPLE_PROG)
tests: $(TEST_PROG) $(HELPER_PROG) ## build the tests

$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(COMPILE) $(WHERE) $(EXTRA) -MMD -MP -c -o $@ $<

# One relocatable object whose private names are local: they cannot collide with a user's.
$(A): $(OBJ) $(BUILD)/link
	$(call say,AR,$@)
	$(Q)$(LD) -r -o $(BUILD)/kolo.o $(OBJ)
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='kolo_*' $(BUILD)/kolo.o
	$(Q)rm -f $@ && $(AR) rcs $@ $(BUILD)/kolo.o

$(SO).$(VERSION): $(OBJ) $(BUILD)/link lib/kolo.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LINK) -Wl,-soname,libkolo.so.$(MAJOR) -Wl,--version-script=lib/kolo.map \
		-Wl,-z,defs -Wl,-z,relro -Wl,-z,now -o $@ $(OBJ) $(LIBS)

$(SO): $(SO).$(VERSION)
	$(Q)ln -sf libkolo.so.$(VERSION) $(SO).$(MAJOR)
	$(Q)ln -sf libkolo.so.$(MAJOR) $@

$(INTERNAL): $(OBJ) $(BUILD)/link
	$(Q)rm -f $@ && $(AR) rcs $@ $(OBJ)

# Programs get the public library only.
link = $(CC) $(LINK) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS)
$(PROG): $(BUILD)/%: $(BUILD)/bench/%.o $(A) $(BUILD)/link
	$(call say,LINK,$@)
	$(Q)$(link)
$(BUILD)/kolo_bench: $(call obj,$(BENCH_PART))
$(EXAMPLE_PROG): %: %.o $(A) $(BUILD)/link
	$(call say,LINK,$@)
	$(Q)$(link)

# Tests reach the internals.
$(TEST_PROG): %: %.o $(call obj,$(SUPPORT)) $(INTERNAL) $(BUILD)/link
	$(call say,LINK,$@)
	$(Q)$(link) $(TEST_LIBS)
$(HELPER_PROG): $(BUILD)/%: $(BUILD)/tests/support/%.o $(INTERNAL) $(BUILD)/link
	$(call say,LINK,$@)
	$(Q)$(link)
$(STRESS_PROG): $(call obj,$(STRESS)) $(INTERNAL) $(BUILD)/link
	$(call say,LINK,$@)
	$(Q)$(link)
$(FUZZ_PROG): $(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(INTERNAL) $(BUILD)/link
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(link) -fsanitize=fuzzer

$(PACKAGE): $(BUILD)/%: lib/%.in $(BUILD)/package
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(call below_prefix,$(LIBDIR))|g' \
		-e 's|@INCLUDEDIR@|$(call below_prefix,$(INCLUDEDIR))|g' \
		-e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' \
		-e 's|@LIBS@|$(strip $(LIBS))|g' -e 's|@CMAKE_LIBS@|$(subst $(space),;,$(strip $(LIBS)))|g' \
		-e "s|@CMAKE_TO_INCLUDEDIR@|$$(realpath -m --relative-to=$(CMAKEDIR) $(INCLUDEDIR))|g" \
		$< > $@
CMAKEDIR := $(LIBDIR)/cmake/Kolo
below_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
space := $(subst ,, )

-include $(patsubst %.o,%.d,$(OBJ) $(call obj,$(BENCH) $(BENCH_PART) $(EXAMPLE) $(HELPER) \
	$(SUPPORT) $(FUZZ) $(STRESS)) $(addsuffix .o,$(TEST_PROG)))

# ---- running ----------------------------------------------------------------------------------

DEMO := $(BUILD)/kolo_bench all_reduce -g 2 -b 8 -e 64M -f 4 -c 1
.PHONY: deps demo check test run-tests asan tsan fuzz run-fuzz stress stress-tsan bench compare \
	instructions lint format

deps: ## install what `make check` needs (through apt when it may)
	@CC='$(CC)' tests/deps.sh check

# A second make, since the first one has looked at the machine before anything was installed.
demo: ## build, and measure all-reduce on this machine; needs only a C compiler
	@CC='$(CC)' tests/deps.sh demo
	@$(MAKE) $(PARALLEL) --no-print-directory all
	$(DEMO)

check: deps ## the same, then all tests and a trial installation
	@$(MAKE) $(PARALLEL) --no-print-directory all tests
	$(DEMO)
	@TEST_SECONDS=$(TEST_SECONDS) tests/run.sh $(BUILD) $(TEST_PROG) tests/install.sh \
		tests/compare.sh

test: tests ## build and run the tests named by T="test_plan test_mem", or all
	@TEST_SECONDS=$(TEST_SECONDS) tests/run.sh $(BUILD) $(TEST_PROG)

asan: ## run the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) $(PARALLEL) --no-print-directory PROFILE=asan tests
	@$(MAKE) --no-print-directory PROFILE=asan test

tsan: ## run the tests under ThreadSanitizer
	@$(MAKE) $(PARALLEL) --no-print-directory PROFILE=tsan tests
	@$(MAKE) --no-print-directory PROFILE=tsan test

fuzz: ## run every fuzzer for FUZZ_SECONDS each (needs clang)
	@$(MAKE) $(PARALLEL) --no-print-directory PROFILE=fuzz CC='$(CLANG)' fuzz-programs
	@$(MAKE) --no-print-directory PROFILE=fuzz CC='$(CLANG)' run-fuzz
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_PROG)
run-fuzz: fuzz-programs
	@tests/run.sh --fuzz $(FUZZ_SECONDS) $(BUILD) $(FUZZ_PROG)

# make PROFILE=asan stress runs it with AddressSanitizer.
STRESS_OPTIONS = $(if $(SECONDS),-s $(SECONDS)) $(if $(OPS),-n $(OPS)) $(if $(SEED),-r $(SEED)) \
	$(if $(WORLD),-w $(WORLD)) -m $(or $(MODE),all)
# As tests/run.sh: ThreadSanitizer of gcc 12 needs addresses that are not spread widely.
FIXED = $(if $(filter tsan,$(PROFILE)),TSAN_OPTIONS=$${TSAN_OPTIONS-halt_on_error=1} \
	$(shell setarch -R true 2>/dev/null && echo setarch -R))
stress: $(STRESS_PROG) ## random collectives against a reference: OPS=1000000, SECONDS=60, SEED=
	$(Q)$(FIXED) $(STRESS_PROG) $(STRESS_OPTIONS)

stress-tsan: ## the same with threads as ranks under ThreadSanitizer
	@$(MAKE) $(PARALLEL) --no-print-directory PROFILE=tsan MODE=local stress

bench: all ## measure every collective on this machine, then the whole sweep beside others (an hour)
	$(Q)for coll in all_reduce all_gather reduce_scatter all_to_all all_to_all_v broadcast reduce \
		gather scatter sendrecv barrier; do echo "# $$coll" && \
		$(BUILD)/kolo_bench $$coll -g 2 -b 8 -e 64M -f 4 -c 1 || exit 1; done
	bench/compare.sh -w

compare: all ## measure other libraries beside Kolo
	bench/compare.sh

instructions: $(BUILD)/prog_instructions ## instructions per operation beside the recorded ones
	bench/instructions.sh $(BUILD)

lint: all ## layers, fences, headers, symbols, format
	@CC='$(CC)' BUILD='$(BUILD)' CLANG_FORMAT='$(CLANG_FORMAT)' tests/lint.sh

FORMATTED = $(wildcard include/*.h lib/*.[ch] transports/*.[ch] bench/*.[ch] examples/*.[ch] \
	tests/*.[ch] tests/support/*.[ch] tests/fuzz/*.[ch])
format: ## rewrite the C files in the style of .clang-format
	$(CLANG_FORMAT) -i $(FORMATTED)

# ---- installing -------------------------------------------------------------------------------

INSTALLED_LIBS := libkolo.a libkolo.so libkolo.so.$(MAJOR) libkolo.so.$(VERSION)
.PHONY: install uninstall clean help

install: all ## install under $(DESTDIR)$(PREFIX)
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(LIBDIR)/pkgconfig \
		$(DESTDIR)$(CMAKEDIR)
	$(INSTALL) -m 644 include/kolo.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 $(A) $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 $(SO).$(VERSION) $(DESTDIR)$(LIBDIR)
	ln -sf libkolo.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkolo.so.$(MAJOR)
	ln -sf libkolo.so.$(MAJOR) $(DESTDIR)$(LIBDIR)/libkolo.so
	$(INSTALL) -m 644 $(BUILD)/kolo.pc $(DESTDIR)$(LIBDIR)/pkgconfig
	$(INSTALL) -m 644 $(BUILD)/KoloConfig.cmake $(BUILD)/KoloConfigVersion.cmake \
		$(DESTDIR)$(CMAKEDIR)
	$(if $(PROG),$(INSTALL) -m 755 $(PROG) $(DESTDIR)$(BINDIR))

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(INCLUDEDIR)/kolo.h $(addprefix $(DESTDIR)$(LIBDIR)/,$(INSTALLED_LIBS)) \
		$(DESTDIR)$(LIBDIR)/pkgconfig/kolo.pc $(addprefix $(DESTDIR)$(BINDIR)/,$(notdir $(PROG)))
	rm -rf $(DESTDIR)$(CMAKEDIR)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 \2/p' Makefile | \
		while read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done
	@echo "Settings: PROFILE=release|debug|asan|tsan V=1 WERROR=1 T= CC CFLAGS LDFLAGS PREFIX DESTDIR"
