# The entry to everything: `make` builds, `make sweep` and `make test` set up a fresh machine first, `make help` lists the rest.

BUILD   ?= build
CC      ?= cc
OPT     ?= -O3
WARN    := -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
           -Wvla -Werror
CFLAGS  ?=
INCLUDE ?= lib/include
# What kernels may include of lib/ lies in lib/kernel/ and lib/include/.
CPPFLAGS_KERNELS := -D_GNU_SOURCE -Ilib/kernel -I$(INCLUDE) -Ikernels -I$(BUILD)/gen $(CPPFLAGS)
CPPFLAGS_ALL := -Ilib $(CPPFLAGS_KERNELS)
CFLAGS_ALL   := $(WARN) $(OPT) -g -fPIC -fvisibility=hidden -pthread -ffp-contract=off $(CFLAGS)
LDLIBS_ALL    = $(CUDA_LIBRARIES) -lm -ldl -pthread

# V=1 shows whole commands. Without it each file is one short line.
Q       := $(if $(V),,@)

# Of this checkout's own repository alone: an archive that was unpacked inside another one has no commit, and a hook's GIT_DIR is another
# repository's. Where git refuses the checkout, since it belongs to another user, the reason is said once.
GIT     := env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE git
COMMIT  := $(or $(if $(wildcard .git),$(shell $(GIT) rev-parse --short=12 HEAD 2>/dev/null)),unknown)
ifeq ($(COMMIT)$(MAKELEVEL),unknown0)
ifneq ($(shell $(GIT) rev-parse HEAD 2>&1 | grep -c 'dubious ownership'),0)
$(info fewhead: commit unknown: this checkout belongs to another user, so git does not read it; git config --global --add safe.directory $(CURDIR))
endif
endif

# CUDA is built in if there is an nvcc in CUDA_HOME/bin, PATH or /usr/local/cuda/bin. CUDA=0 leaves it out; CUDA=1 fails without nvcc.
CUDA      ?=
CUDA_HOME ?=
NVCCFLAGS ?=
ifneq ($(CUDA),0)
NVCC := $(firstword $(wildcard $(CUDA_HOME:%=%/bin/nvcc) \
          $(if $(filter command,$(origin CUDA_HOME)),,$(shell command -v nvcc) /usr/local/cuda/bin/nvcc)))
ifeq ($(NVCC),)
$(if $(filter command,$(origin CUDA_HOME)),$(error fewhead: CUDA_HOME: got $(CUDA_HOME), wanted a folder with bin/nvcc in it))
$(if $(CUDA),$(error fewhead: CUDA: got $(CUDA), and there is no nvcc in CUDA_HOME/bin, PATH or /usr/local/cuda/bin))
endif
endif
ifneq ($(NVCC),)
comma := ,
# The toolkit lies two folders up from nvcc itself; the nvcc on PATH may be a link.
CUDA_ROOT      := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_TEXT      := CUDA $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') (sm_80, sm_90a)
# A kernel's folder has its sources, one file an instantiation, and its cases for the kernels' own program (build/kernels).
KERNEL_TESTS   := $(wildcard kernels/cuda/test/*.cu kernels/*/*/cases.cu)
CUDA_SOURCES   := $(filter-out $(KERNEL_TESTS),$(wildcard kernels/cuda/*.cu kernels/*/*/*.cu kernels/*/*/instantiations/*.cu))
CUDA_INCLUDE   := -isystem $(CUDA_ROOT)/include
# The CUDA runtime is linked in and its symbols are hidden: the process may have another copy of it.
CUDA_LIBRARIES := -L$(CUDA_ROOT)/lib64 -l:libcudart_static.a -Wl,--exclude-libs,libcudart_static.a -ldl -lrt
# No C++ library is linked. So the host code of a kernel file throws nothing, and its only statics are nvcc's own constants.
CUDA_FLAGS     := -std=c++17 -O3 -lineinfo -Werror all-warnings -Ilib/kernel -Ilib/include -Ikernels \
                  -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall $(NVCCFLAGS)
# What runs anywhere is built for sm_80, for sm_90a and as PTX for what comes after; what lies under sm90/ for sm_90a alone.
cuda_targets = $(if $(filter kernels/sm90/%,$(1)),,-gencode arch=compute_80$(comma)code=[sm_80$(comma)compute_80]) \
               -gencode arch=compute_90a$(comma)code=sm_90a
else
CUDA_TEXT := without CUDA
endif

# A device has a folder on both sides, lib/<device>/ and kernels/<device>/. Without nvcc CUDA is left out.
ALL_DEVICES := $(patsubst lib/%/device.c,%,$(wildcard lib/*/device.c))
DEVICES := $(filter-out $(if $(NVCC),,cuda),$(ALL_DEVICES))
# A kernel has a folder with a file kernel.c, its rows: kernels/<device>/<kernel>/, on CUDA kernels/<arch>/<kernel>/.
kernels_of = $(if $(filter cuda,$(1)),$(filter-out $(ALL_DEVICES:%=kernels/%/%),$(wildcard kernels/*/*/kernel.c)),$(wildcard kernels/$(1)/*/kernel.c))
lists := $(BUILD)/gen/devices.h $(DEVICES:%=$(BUILD)/gen/kernels_%.h)
SOURCES := $(wildcard lib/*.c) $(foreach device,$(DEVICES),$(wildcard lib/$(device)/*.c kernels/$(device)/*.c) $(call kernels_of,$(device)))
OBJECTS := $(SOURCES:%.c=$(BUILD)/obj/%.o) $(CUDA_SOURCES:%.cu=$(BUILD)/obj/%.o)
LIBRARY := $(BUILD)/libfewhead.so
version := $(shell awk '/FH_VERSION = [0-9]+/ { match($$0, /= [0-9]+/); v = substr($$0, RSTART + 2, RLENGTH - 2); \
             printf "%d.%d.%d", v / 10000, v / 100 % 100, v % 100 }' lib/include/fewhead.h)
# The name that programs linked against the library ask for. Below 1.0 a minor version may break them, so it is part of the name.
SONAME  := libfewhead.so.$(basename $(version))
# What the library exports, and under which version.
EXPORTS := lib/fewhead.map

# The plug-in that runs an installed FlashMLA. It is a library of its own, so that libfewhead knows nothing of PyTorch.
FLASHMLA_SOURCES := $(wildcard peers/flashmla/*.c)
FLASHMLA_OBJECTS := $(FLASHMLA_SOURCES:%.c=$(BUILD)/obj/%.o)
FLASHMLA         := $(BUILD)/libfewhead_flashmla.so

# A kernel file's instruction set stands in its name; everything else is built for the plain CPU and chosen at run time.
X86 := $(filter x86_64 amd64,$(shell uname -m))
# A compiler that has no AMX builds the rest.
amx_flags = $(shell $(CC) -mamx-tile -mamx-bf16 -E -x c /dev/null >/dev/null 2>&1 && echo -mamx-tile -mamx-bf16)
isa_flags = $(if $(X86),$(if $(filter %_avx512_bf16.c %_amx.c,$(1)),-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mprefer-vector-width=512 $(if $(filter %_amx.c,$(1)),$(amx_flags)),$(if $(filter %_avx512.c,$(1)),-mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512,$(if $(filter %_avx2.c,$(1)),-mavx2 -mfma,))))

.PHONY: race-kernels all lib help setup sweep test test-kill test-slurm robustness parity bench bench-gpu repl lint lint-lua lint-c lint-tidy lint-sh lint-exports lint-docs lint-api lint-rock lint-format list-lint docs format install install-lua uninstall ctest ctest-sanitize list-ctest clean
# Builds in a make of its own. It uses every CPU unless the caller gave a -j, since one file after another takes minutes with CUDA. It
# also reads this file again: setup may have installed the compiler just now.
build_now = +@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc)) lib
all:
	$(build_now)
lib: $(LIBRARY) $(FLASHMLA)

$(LIBRARY): $(OBJECTS) $(EXPORTS)
	@mkdir -p $(@D)
	$(if $(V),,@echo '  ld  $@')
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME) -Wl,--no-undefined -Wl,--version-script=$(EXPORTS) $(CFLAGS) $(LDFLAGS) -o $@ $(OBJECTS) $(LDLIBS_ALL)
	@ln -sf libfewhead.so $(BUILD)/$(SONAME)
	@echo 'fewhead: built for the CPU $(if $(NVCC),and $(CUDA_TEXT),alone: $(if $(filter 0,$(CUDA)),CUDA=0,no nvcc here))'

$(FLASHMLA): $(FLASHMLA_OBJECTS)
	$(if $(V),,@echo '  ld  $@')
	$(Q)$(CC) -shared -Wl,--no-undefined $(CFLAGS) $(LDFLAGS) -o $@ $^ -ldl

$(BUILD)/obj/%.o: %.c $(BUILD)/gen/header_checksum.h | $(BUILD)/gen/commit.h $(BUILD)/gen/cuda_build.h $(lists)
	@mkdir -p $(@D)
	@command -v $(firstword $(CC)) >/dev/null || { echo 'fewhead: no C compiler: make setup installs one' >&2; exit 1; }
	$(if $(V),,@echo '  cc  $<')
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

$(BUILD)/obj/kernels/%.o: CPPFLAGS_ALL := $(CPPFLAGS_KERNELS)
$(BUILD)/obj/lib/cuda/%.o: CPPFLAGS_ALL += $(CUDA_INCLUDE)

$(BUILD)/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(if $(V),,@echo '  nvcc $<')
	$(Q)$(NVCC) $(CUDA_FLAGS) $(call cuda_targets,$<) -MMD -MP -c -o $@ $<

# The checksum of the declarations between the cdef marks. A binding compares it before it trusts a library.
$(BUILD)/gen/header_checksum.h: lib/include/fewhead.h
	@mkdir -p $(@D)
	@sed -n '/^\/\* cdef:begin \*\/$$/,/^\/\* cdef:end \*\/$$/p' $< | sed '1d;$$d' | cksum | \
	  awk '{ print "#define FH_HEADER_CHECKSUM " $$1 "u" }' > $@

# These headers are rewritten only if their text has changed, so that files that include them are not built again for nothing.
rewrite = @mkdir -p $(@D); printf '$(1)\n' | cmp -s - $@ || printf '$(1)\n' > $@
$(BUILD)/gen/commit.h: FORCE
	$(call rewrite,#define FH_COMMIT "$(COMMIT)")
$(BUILD)/gen/cuda_build.h: FORCE
	$(call rewrite,#define FH_WITH_CUDA $(if $(NVCC),1,0)\n#define FH_CUDA_TEXT "$(CUDA_TEXT)")
# The list of a device's kernels: the folder of each, "FHK_ROWS(sm90_gather)".
$(DEVICES:%=$(BUILD)/gen/kernels_%.h): $(BUILD)/gen/kernels_%.h: FORCE
	$(call rewrite,$(foreach file,$(call kernels_of,$*),FHK_ROWS($(subst /,_,$(patsubst kernels/%/kernel.c,%,$(file))))))
# The list of devices, in the build or left out of it.
$(BUILD)/gen/devices.h: FORCE
	$(call rewrite,$(foreach device,$(ALL_DEVICES),FH_DEVICE$(if $(filter $(device),$(DEVICES)),,_LEFT_OUT)($(device))))
FORCE:

# ---- C tests: each spec/c/test_*.c is a program that links every object and ends with "N passed, M failed"
CTEST_SOURCES := $(wildcard spec/c/test_*.c $(if $(NVCC),spec/c/cuda/test_*.c))
CTESTS := $(CTEST_SOURCES:spec/c/%.c=$(BUILD)/spec/%)
$(BUILD)/spec/cuda/%: CPPFLAGS_ALL += -Ispec/c $(CUDA_INCLUDE)
$(BUILD)/spec/%: spec/c/%.c $(wildcard spec/c/*.h) $(OBJECTS)
	@mkdir -p $(@D)
	$(if $(V),,@echo '  cc  $<')
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $(OBJECTS) $(LDFLAGS) $(LDLIBS_ALL)
# A program of an older version, linked with the library, that runs once more with a later one: there every struct has grown by four
# words at its end.
LATER := $(BUILD)/later
$(LATER)/include/%.h: lib/include/%.h
	@mkdir -p $(@D)
	@awk '/^  uint64_t struct_size;/ { grows = 1 } /^}/ && grows { print "  uint64_t later[4];"; grows = 0 } { print }' $< > $@
$(LATER)/libfewhead.so: $(LIBRARY) $(LATER)/include/fewhead.h $(LATER)/include/fewhead_provider.h
	+@$(MAKE) --no-print-directory CUDA=0 BUILD=$(LATER) OPT=-O0 INCLUDE=$(LATER)/include $@
$(BUILD)/spec/test_abi: spec/c/test_abi.c spec/c/abi_0_2.h spec/c/check.h $(LATER)/libfewhead.so
	@mkdir -p $(@D)
	$(if $(V),,@echo '  cc  $<')
	$(Q)$(CC) $(WARN) $(CFLAGS) -D_GNU_SOURCE -DLATER='"$(LATER)"' -g -o $@ $< $(LDFLAGS) -L$(BUILD) -lfewhead -lm \
	  -Wl,-rpath,'$$ORIGIN/..' -Wl,--enable-new-dtags
ctest: $(CTESTS)
	@set -e; for t in $(CTESTS); do echo "== $$t"; $$t; done
# The same programs, built apart with both sanitizers. The first error ends the run. A failing allocation is not an error: tests ask for
# more memory than there is.
ctest-sanitize:
	@ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 $(MAKE) --no-print-directory CUDA=0 BUILD=$(BUILD)/asan OPT=-O1 \
	  CFLAGS='$(CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' ctest
list-ctest:
	@printf '%s\n' $(CTESTS)

# The kernels alone, for a machine with a GPU: kernels/cuda/test/runner.cu says what it takes.
$(BUILD)/kernels: $(KERNEL_TESTS:%.cu=$(BUILD)/obj/%.o) $(CUDA_SOURCES:%.cu=$(BUILD)/obj/%.o) \
    $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard kernels/cuda/*.c) $(call kernels_of,cuda))
	$(if $(V),,@echo '  nvcc $@')
	$(Q)$(NVCC) -std=c++17 $(NVCCFLAGS) -gencode arch=compute_90a,code=sm_90a -cudart static -o $@ $^
# The program itself needs no speed, and runs where the kernels of sm90 do.
$(KERNEL_TESTS:%.cu=$(BUILD)/obj/%.o): $(BUILD)/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(if $(V),,@echo '  nvcc $<')
	$(Q)$(NVCC) -std=c++17 -O1 -Ilib/kernel -Ilib/include -Ikernels $(NVCCFLAGS) -gencode arch=compute_90a,code=sm_90a -MMD -MP -c -o $@ $<

# The same for compute-sanitizer's racecheck. CI builds it, so that this form of the kernels compiles too.
race-kernels:
	$(if $(NVCC),@$(MAKE) --no-print-directory BUILD=$(BUILD)/race NVCCFLAGS=-DFHK_RACECHECK $(BUILD)/race/kernels,@echo 'race-kernels: no nvcc here, not built')

# ---- Commands. Each target first installs what it needs and builds, so it works on a machine with only git and make.
help:
	@echo 'make            build build/libfewhead.so, with CUDA where there is an nvcc; CUDA=0: without; CUDA_HOME=FOLDER: its nvcc'
	@echo 'make sweep      where native heads beat padded heads here: table, gate and report files under results/local/'
	@echo 'make test       every C test and every spec'
	@echo 'make robustness what was wrong once around the core, tried again; writes docs/robustness.md'
	@echo 'make parity     the conformance grid on every path'
	@echo 'make repl       an interactive prompt with the library loaded'
	@echo 'make bench      GFLOP/s of every path beside OpenBLAS on this machine'
	@echo 'make bench-gpu  parity of every path on a GPU, then kernels.* and packed.* in results/NAME-OF-THE-DEVICE/; GPU=cuda:1: another one'
	@echo 'make build/kernels  the kernels alone with their own checks and times, on a machine with a GPU: build/kernels check'
	@echo 'make docs       write the tables in README, docs/, results/ and kernels/ anew from the records; build/api: the Lua reference'
	@echo 'make lint       checks of the sources: $(LINT)'
	@echo 'make format     lay out the C and CUDA sources; make lint-format only checks'
	@echo 'make install    PREFIX=/usr/local DESTDIR=: library, header, pkg-config file, Lua modules, launcher, experiments'
	@echo 'make uninstall  the same paths, removed'
	@echo 'make setup      only install what sweep, test, bench and lint need'
	@echo 'make wheel      build/wheel/fewhead-*.whl: the Python package with the library in it'
	@echo 'make test-kill  kill -9 at 200 random moments of a sweep, then --resume: nothing lost, nothing twice'
	@echo 'make test-slurm a sweep over the nodes of a Slurm cluster on this host (slurm-wlm, munge; root)'
	@echo 'make test-torch its tests, in a virtual environment with PyTorch (make torch-env: about 3 GB, once; FEWHEAD_TORCH_ENV: where)'
	@echo 'make wheel-vllm build/wheel/fewhead_vllm-*.whl: the plug-in for vLLM; make test-vllm its tests, in the same virtual environment'
	@echo 'make clean      remove build/'
	@echo 'ARGS= goes to the command behind sweep, parity, bench and bench-gpu: make sweep ARGS=--help'

setup:
	@tools/setup.sh run test bench lint

sweep:
	@tools/setup.sh run
	$(build_now)
	@./fewhead run experiments/gate_sweep.lua $(ARGS)

test:
	@tools/setup.sh test
	$(build_now)
	@tools/test.sh

# kill -9 at 200 random moments of a sweep, and what --resume makes of it; make test tries a few.
test-kill:
	@tools/setup.sh test
	$(build_now)
	@FEWHEAD_KILLS=200 busted --output=plainTerminal spec/kill_spec.lua

# A sweep over a job array of a real Slurm on this host, one node of which dies.
test-slurm:
	@tools/setup.sh run
	$(build_now)
	@tools/test_slurm.sh

# What is around the core, held against inputs that once broke it. The C programs are those that spec/robustness/items.lua names.
ROBUST = $(shell sed -n 's/.*program = "\(test_[a-z_]*\)".*/\1/p' spec/robustness/items.lua)
robustness:
	@tools/setup.sh test
	$(build_now)
	@$(MAKE) --no-print-directory $(ROBUST:%=$(BUILD)/spec/%)
	@luajit tools/robustness.lua $(BUILD)/spec

parity:
	@tools/setup.sh run
	$(build_now)
	@./fewhead parity $(ARGS)

# First the comparison with OpenBLAS, then the machine's limits and all paths by pattern, heads and instruction set.
bench:
	@tools/setup.sh bench
	$(build_now)
	@./fewhead run experiments/bench.lua $(ARGS)
	@$(MAKE) --no-print-directory $(BUILD)/bench/peak $(BUILD)/bench/cpu
	@$(BUILD)/bench/peak
	@$(BUILD)/bench/cpu results/local/bench_cpu.md
# Parity comes first: the speed of a wrong answer means nothing.
GPU ?= cuda:0
bench-gpu:
	@tools/setup.sh run
	$(build_now)
	@./fewhead parity --device $(GPU)
	@./fewhead run experiments/bench_gpu.lua --device $(GPU) --out results/DEVICE $(ARGS)
	@./fewhead run experiments/bench_packed.lua --device $(GPU) --out results/DEVICE $(ARGS)
$(BUILD)/bench/%: bench/%.c $(OBJECTS)
	@mkdir -p $(@D)
	$(if $(V),,@echo '  cc  $<')
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $(OBJECTS) $(LDFLAGS) $(LDLIBS_ALL) -ldl

repl:
	@tools/setup.sh repl
	$(build_now)
	@./fewhead repl

# ---- Lint: each tool is a target of its own, so that `make -k lint` runs all of them. Compiler warnings are errors in every build.
C_FILES := $(SOURCES) $(FLASHMLA_SOURCES) $(CTEST_SOURCES) $(filter-out spec/c/test_%.c,$(wildcard spec/c/*.c)) $(wildcard bench/*.c)

LINT := lint-lua lint-c lint-tidy lint-sh lint-docs lint-api lint-rock lint-exports lint-format
lint: $(LINT)
list-lint:
	@printf '%s\n' $(LINT)

lint-lua:
	@tools/setup.sh lint
	luacheck -q --no-color .

lint-c:
	@tools/setup.sh lint
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
	  $(filter -D% -I%,$(CPPFLAGS_ALL)) lib kernels peers

# Each file is checked with its own instruction set. A finding does not stop the loop.
lint-tidy: $(BUILD)/gen/header_checksum.h $(BUILD)/gen/commit.h $(BUILD)/gen/cuda_build.h $(lists)
	@command -v clang-tidy >/dev/null || { echo 'lint-tidy: not run, clang-tidy is not installed'; exit 0; }; failed=0; \
	$(foreach f,$(C_FILES),clang-tidy --quiet $(f) -- -std=c11 -Ispec/c -DLATER='"$(LATER)"' $(CPPFLAGS_ALL) $(CUDA_INCLUDE) $(call isa_flags,$(f)) || failed=1;) exit $$failed

# The functions that the header declares, those in the list of exports, and those that the library really exports are the same.
lint-exports: lib
	@mkdir -p $(BUILD)/gen
	@$(CC) -E -P lib/include/fewhead.h | grep -o '\bfh_[a-z0-9_]*(' | tr -d '(' | sort -u > $(BUILD)/gen/declared
	@sed -n 's/^ *\(fh_[a-z0-9_]*\);$$/\1/p' $(EXPORTS) | sort > $(BUILD)/gen/listed
	@nm -D --defined-only $(LIBRARY) | awk '$$2 != "A" { sub(/@.*/, "", $$3); print $$3 }' | sort > $(BUILD)/gen/exported
	diff $(BUILD)/gen/declared $(BUILD)/gen/listed
	diff $(BUILD)/gen/listed $(BUILD)/gen/exported

lint-sh:
	@command -v shellcheck >/dev/null || { echo 'lint-sh: not run, shellcheck is not installed'; exit 0; }; \
	shellcheck -x fewhead tools/*.sh .ci/run engines/python/*.sh

# The tables in README.md, docs/ and the READMEs in results/ and kernels/ are made from the records in results/. LDoc makes the
# reference of the Lua modules from their docstrings (config.ld).
docs:
	@tools/setup.sh run docs
	$(build_now)
	luajit tools/docs.lua
	ldoc --quiet --fatalwarnings --dir $(BUILD)/api .
	@echo 'the reference of the Lua modules: $(BUILD)/api/index.html'
lint-api:
	@tools/setup.sh run docs
	$(build_now)
	luajit tools/lint_api.lua
lint-rock:
	@command -v luarocks >/dev/null || { echo 'lint-rock: not run, luarocks is not installed'; exit 0; }; luarocks lint *.rockspec
lint-docs:
	@tools/setup.sh run
	$(build_now)
	luajit tools/docs.lua --check

# The layout of C and CUDA sources (.clang-format). Versions of clang-format differ in details, so one version decides.
CLANG_FORMAT ?= clang-format-14
FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')
# The first command shortens section lines ("/* ---- Name ---- */") to 120 columns: clang-format would break them.
format:
	sed -i -E ':a; /^\/\* ---- .*-- \*\/$$/{/^.{121}/{s/- \*\/$$/ *\//; ba}}' $(FORMATTED)
	$(CLANG_FORMAT) -i $(FORMATTED)
lint-format:
	@command -v $(CLANG_FORMAT) >/dev/null || { echo 'lint-format: not run, $(CLANG_FORMAT) is not installed'; exit 0; }; \
	{ for f in $(FORMATTED); do $(CLANG_FORMAT) "$$f" | cmp -s - "$$f" || echo "$$f: not laid out as .clang-format says: run make format"; done; \
	  awk 'length > 120 { print FILENAME ":" FNR ": " length " columns, wanted at most 120" }' $(FORMATTED); } | awk '1; END { exit NR > 0 }'

# ---- The Python package. A folder to import from and a wheel are made of the same files; nothing is compiled against PyTorch.
.PHONY: wheel torch-env test-torch
TORCH_ENV = $(or $(FEWHEAD_TORCH_ENV),$(HOME)/.cache/fewhead/torch)

wheel:
	$(build_now)
	@python3 engines/python/package.py wheel $(BUILD)/wheel --library $(LIBRARY)

torch-env:
	@engines/python/torch_env.sh "$(TORCH_ENV)"

# FEWHEAD_GRID=FILE: FlashMLA's conformance grid, one case a line, in place of the short one in the tests.
test-torch: torch-env
	$(build_now)
	@python3 engines/python/package.py stage $(BUILD)/python --library $(LIBRARY)
	@PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(abspath $(BUILD)/python) "$(TORCH_ENV)/bin/python" -m pytest -q \
	  -c engines/python/pyproject.toml --rootdir engines/python engines/python/tests $(ARGS)

# ---- The plug-in for vLLM. build/vllm holds it with its metadata, by which vLLM finds it; build/python fewhead itself.
.PHONY: wheel-vllm stage-vllm test-vllm

wheel-vllm:
	@python3 engines/vllm/package.py wheel $(BUILD)/wheel

stage-vllm:
	$(build_now)
	@python3 engines/python/package.py stage $(BUILD)/python --library $(LIBRARY)
	@python3 engines/vllm/package.py stage $(BUILD)/vllm

# FEWHEAD_VLLM_SOURCE=FOLDER:..: unpacked wheels of vLLM, whose source the names and signatures are compared with.
test-vllm: torch-env stage-vllm
	@PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(abspath $(BUILD)/python):$(abspath $(BUILD)/vllm) "$(TORCH_ENV)/bin/python" -m pytest -q \
	  -c engines/vllm/pyproject.toml --rootdir engines/vllm engines/vllm/tests $(ARGS)

# ---- Install. The Lua modules find header and library from where they lie themselves, and a C program by the rpath in fewhead.pc. Every file gets its mode here, and `install -d`
# makes folders with 755: what is installed is for everybody, whatever the umask is.
PREFIX  ?= /usr/local
DESTDIR ?=
BINDIR  ?= $(PREFIX)/bin
LIBDIR  ?= $(PREFIX)/lib
LUADIR  ?= $(PREFIX)/share/lua/5.1
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
# Experiments, and the records that predictions are made from.
SHIPPED ?= $(DATADIR)/fewhead

# The rooms of the Lua side, the facade's own folder first.
MODULES := $(patsubst %/,%,$(sort $(dir $(wildcard lua/fewhead/*.lua lua/fewhead/*/*.lua))))

install: install-lua
	install -d "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(LIBDIR)/pkgconfig"
	install -m 644 lib/include/*.h "$(DESTDIR)$(INCLUDEDIR)/"
	ln -sf libfewhead.so "$(DESTDIR)$(LIBDIR)/$(SONAME)"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(version)|' \
	  fewhead.pc.in > "$(DESTDIR)$(LIBDIR)/pkgconfig/fewhead.pc"
	chmod 644 "$(DESTDIR)$(LIBDIR)/pkgconfig/fewhead.pc"
	install -d "$(DESTDIR)$(DATADIR)/bash-completion/completions"
	FEWHEAD_LIB="$(abspath $(LIBRARY))" ./fewhead completion bash > $(BUILD)/gen/completion.bash
	install -m 644 $(BUILD)/gen/completion.bash "$(DESTDIR)$(DATADIR)/bash-completion/completions/fewhead"
	@echo 'fewhead: installed below $(DESTDIR)$(PREFIX); a C program: cc program.c $$(pkg-config --cflags --libs fewhead)'
	@$(if $(DESTDIR),:,pkg-config --exists fewhead 2>/dev/null) || \
	  echo 'fewhead: pkg-config does not look there: export PKG_CONFIG_PATH=$(LIBDIR)/pkgconfig'

# The command, the Lua modules, the experiments and what they need: a package of Lua modules installs this part alone.
install-lua: lib
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)" "$(DESTDIR)$(SHIPPED)/experiments" $(MODULES:lua/%='$(DESTDIR)$(LUADIR)/%')
	install -m 755 $(LIBRARY) $(FLASHMLA) "$(DESTDIR)$(LIBDIR)/"
	set -e; for room in $(MODULES); do install -m 644 $$room/*.lua "$(DESTDIR)$(LUADIR)/$${room#lua/}/"; done
	install -m 644 lib/include/fewhead.h "$(DESTDIR)$(LUADIR)/fewhead/"
	install -m 755 fewhead "$(DESTDIR)$(BINDIR)/"
	install -m 644 experiments/*.lua "$(DESTDIR)$(SHIPPED)/experiments/"
	install -D -m 755 experiments/cluster/sweep.sbatch "$(DESTDIR)$(SHIPPED)/experiments/cluster/sweep.sbatch"
	for f in results/*/packed.jsonl results/*/gate_sweep.jsonl; do \
	  [ ! -f "$$f" ] || install -D -m 644 "$$f" "$(DESTDIR)$(SHIPPED)/$$f" || exit 1; done

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/fewhead" "$(DESTDIR)$(INCLUDEDIR)/fewhead.h" "$(DESTDIR)$(INCLUDEDIR)/fewhead_provider.h"
	rm -f "$(DESTDIR)$(LIBDIR)/$(SONAME)" "$(DESTDIR)$(LIBDIR)/libfewhead.so" "$(DESTDIR)$(LIBDIR)/libfewhead_flashmla.so" \
	  "$(DESTDIR)$(LIBDIR)/pkgconfig/fewhead.pc"
	rm -f "$(DESTDIR)$(DATADIR)/bash-completion/completions/fewhead"
	rm -rf "$(DESTDIR)$(LUADIR)/fewhead" "$(DESTDIR)$(SHIPPED)"

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d) $(KERNEL_TESTS:%.cu=$(BUILD)/obj/%.d) $(FLASHMLA_OBJECTS:.o=.d)
