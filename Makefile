# The only entry: `make` builds, `make sweep` and `make test` do everything on a fresh machine, `make help` lists the rest.

BUILD   ?= build
CC      ?= cc
OPT     ?= -O3
WARN    := -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
           -Wvla -Werror
CFLAGS  ?=
CPPFLAGS_ALL := -D_GNU_SOURCE -Ilib -Ilib/include -Ikernels -I$(BUILD)/gen $(CPPFLAGS)
CFLAGS_ALL   := $(WARN) $(OPT) -g -fPIC -fvisibility=hidden -pthread -ffp-contract=off $(CFLAGS)
LDLIBS_ALL   := -lm -pthread

COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

SOURCES := $(wildcard lib/*.c) $(wildcard kernels/cpu/*.c)
OBJECTS := $(SOURCES:%.c=$(BUILD)/obj/%.o)
LIBRARY := $(BUILD)/libfewhead.so

# A kernel file's instruction set stands in its name; everything else is built for the plain CPU and chosen at run time.
X86 := $(filter x86_64 amd64,$(shell uname -m))
isa_flags = $(if $(X86),$(if $(filter %_avx512_bf16.c,$(1)),-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mprefer-vector-width=512,$(if $(filter %_avx512.c,$(1)),-mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512,$(if $(filter %_avx2.c,$(1)),-mavx2 -mfma,))))

.PHONY: all lib help setup sweep test parity repl bench lint install uninstall ctest clean
all: lib
lib: $(LIBRARY)

$(LIBRARY): $(OBJECTS)
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libfewhead.so -Wl,--no-undefined $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS_ALL)

$(BUILD)/obj/%.o: %.c $(BUILD)/gen/header_checksum.h
	@mkdir -p $(@D)
	@command -v $(firstword $(CC)) >/dev/null || { echo 'fewhead: no C compiler: make setup installs one' >&2; exit 1; }
	$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

# What a binding compares before it trusts a library: the checksum of the declarations it was built from.
$(BUILD)/gen/header_checksum.h: lib/include/fewhead.h
	@mkdir -p $(@D)
	@sed -n '/^\/\* cdef:begin \*\/$$/,/^\/\* cdef:end \*\/$$/p' $< | sed '1d;$$d' | cksum | \
	  awk '{ print "#define FH_HEADER_CHECKSUM " $$1 "u" }' > $@

# ---- C tests: each spec/c/test_*.c is a program that links every object and ends with "N passed, M failed"
CTESTS := $(patsubst spec/c/%.c,$(BUILD)/spec/%,$(wildcard spec/c/test_*.c))
$(BUILD)/spec/%: spec/c/%.c spec/c/check.h $(OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $(OBJECTS) $(LDFLAGS) $(LDLIBS_ALL)
ctest: $(CTESTS)
	@set -e; for t in $(CTESTS); do echo "== $$t"; $$t; done

# ---- What people type. Each target sets up what it needs and builds before it runs, so it works on a machine with only git and make.
# The build comes second and on its own: at the time make reads this file there may be no compiler yet.
build_now = @$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc)) lib

help:
	@echo 'make            build build/libfewhead.so'
	@echo 'make sweep      where native heads beat padded heads here: table, gate and report files under results/local/'
	@echo 'make test       every C test and every spec'
	@echo 'make parity     the conformance grid on every path'
	@echo 'make repl       an interactive prompt with the library loaded'
	@echo 'make bench      speed beside OpenBLAS on this machine'
	@echo 'make lint       luacheck and cppcheck (clang-tidy and shellcheck too where they are installed)'
	@echo 'make install    PREFIX=/usr/local DESTDIR=: library, header, pkg-config file, Lua modules, launcher, experiments'
	@echo 'make uninstall  the same paths, removed'
	@echo 'make setup      only install what sweep, test, lint and bench need'
	@echo 'make clean      remove build/'
	@echo 'ARGS= goes to the command behind sweep, parity and bench: make sweep ARGS=--help'

setup:
	@tools/setup.sh run test lint bench

sweep:
	@tools/setup.sh run
	$(build_now)
	@./fewhead run experiments/gate_sweep.lua $(ARGS)

test:
	@tools/setup.sh test
	$(build_now)
	@tools/test.sh

parity:
	@tools/setup.sh run
	$(build_now)
	@./fewhead parity $(ARGS)

repl:
	@tools/setup.sh run
	$(build_now)
	@./fewhead repl

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d)
