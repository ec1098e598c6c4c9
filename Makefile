# The front door. Each command sets up what it needs first (tools/setup.sh), says what it installs, and is quick the second time.
#
#   make         build the C library into build/
#   make run     build, install into .venv, run the quick start, show the MSL and the devices; EAS_BACKEND=mps make run
#                does it on Metal, or where there is none on the stand-in (docs/metal.md)
#   make test    everything: C tests, sanitizers, short fuzz runs, pytest, and a part of it as on machines with less (AVX2, SSE2)
#   make check   prose, clang-format and ruff
#   make format  rewrites the sources as `make check` wants them
#   make bench   numbers, against peers
#   make soak    the fuzzer for SOAK seconds; DIFF random kernels in every way there is; derivatives of GRADS; GRAPHS random graphs of tensors, SHARDS of them on meshes; every operation cut in every way; a million queued launches
#   make sweep   every f32 through the elementary functions, against the C library in double: minutes each
#   make wheel   a wheel for this machine's newest platform tag, tried in a virtual environment of its own
#   make docs    the documentation as a site, with the reference, in build/site
#   make clean
PY := .venv/bin/python
MESON := $(PY) -m mesonbuild.mesonmain
NINJA := .venv/bin/ninja
CLANG ?= clang-19
FORMAT ?= clang-format-19
FUZZ ?= 20
SOAK ?= 600
CODEGEN ?= 200
CODEGEN_SEED ?= 1
DIFF ?= 100000
GRAPHS ?= 20000
GRADS ?= 20000
SHARDS ?= 5000
STACKS ?= 500
JOBS ?= 2
SUMMARY := build/summary
C_FILES = $(shell git ls-files '*.c' '*.h')
SOURCES = $(shell git ls-files -co --exclude-standard src include python pyproject.toml meson.build meson_options.txt tools/build_id.py)

# Metal where there is none: the stand-in, once it is built; whoever has set the variable keeps it.
STANDIN := $(CURDIR)/build/release/tests/metal/libeas-metal-standin.so
ON_MAC := $(filter Darwin,$(shell uname))
# Devices that setup-test provides: the suite fails where one of them is absent.
COMMA := ,
EXPECTED := $(if $(ON_MAC),mps,opencl$(COMMA)mps)
WANTS_STANDIN := $(if $(EAS_METAL_LIBRARY)$(ON_MAC),,yes)
METAL = $(if $(WANTS_STANDIN),$(shell test -f $(STANDIN) && echo EAS_METAL_LIBRARY=$(STANDIN)))

export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: all run test check format bench soak sweep docs wheel setup-docs setup-wheel clean setup-run setup-test setup-check setup-bench setup-soak standin ctest asan tsan fuzz codegen-fuzz diff grads graphs pytest isa

all: setup-run build/release/build.ninja
	@$(NINJA) -C build/release --quiet

setup-run setup-test setup-check setup-bench setup-soak setup-docs setup-wheel:
	@sh tools/setup.sh $(@:setup-%=%)

# ---- builds ----

OPTIONS := -Dpython=disabled

build/release/build.ninja: | .venv
	@$(MESON) setup build/release $(OPTIONS) >build/release.log 2>&1 || { cat build/release.log; exit 1; }
build/asan/build.ninja: | .venv
	@CC=$(CLANG) $(MESON) setup build/asan $(OPTIONS) -Dllvm=disabled -Dfuzz=true --buildtype=debugoptimized -Db_ndebug=false \
		-Db_sanitize=address,undefined -Db_lundef=false >build/asan.log 2>&1 || { cat build/asan.log; exit 1; }
build/tsan/build.ninja: | .venv
	@CC=$(CLANG) $(MESON) setup build/tsan $(OPTIONS) -Dllvm=disabled --buildtype=debugoptimized -Db_ndebug=false \
		-Db_sanitize=thread -Db_lundef=false >build/tsan.log 2>&1 || { cat build/tsan.log; exit 1; }
build/release/build.ninja build/asan/build.ninja build/tsan/build.ninja: | build
build:
	@mkdir -p build

# The package goes into .venv when any of its sources is newer than the last time; the build folder makes that incremental.
.venv/.installed: $(SOURCES)
	@echo "building and installing the Python package"
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall --config-settings=build-dir=build/python .
	@touch $@

# ---- commands ----

run: setup-run $(if $(WANTS_STANDIN),$(if $(filter mps metal,$(EAS_BACKEND)),standin))
	@$(MAKE) -s --no-print-directory .venv/.installed
	@$(METAL) $(PY) -m examples.add
	@echo "devices:"
	@$(METAL) $(PY) tools/devices.py

# Everything runs even if something fails; the plain count of the C tests comes last.
test: setup-test
	@mkdir -p build && rm -f $(SUMMARY)
	@status=0; \
	for part in ctest asan tsan fuzz codegen-fuzz pytest isa; do $(MAKE) --no-print-directory $$part || status=1; done; \
	$(PY) tools/run_ctests.py --total $(SUMMARY) || status=1; \
	exit $$status

ctest: build/release/build.ninja
	@$(MESON) setup --reconfigure build/release >/dev/null
	@$(NINJA) -C build/release --quiet
	@EAS_EXPECT_DEVICES=$(EXPECTED) $(PY) tools/run_ctests.py --summary $(SUMMARY) build/release

asan: build/asan/build.ninja
	@$(MESON) setup --reconfigure build/asan >/dev/null
	@$(NINJA) -C build/asan --quiet
	@EAS_EXPECT_DEVICES=$(EXPECTED) $(PY) tools/run_ctests.py --summary $(SUMMARY) build/asan

tsan: build/tsan/build.ninja
	@$(MESON) setup --reconfigure build/tsan >/dev/null
	@$(NINJA) -C build/tsan --quiet tests/c/test_pool tests/c/test_stream tests/c/test_comm $(if $(ON_MAC),,tests/c/test_metal tests/metal/libeas-metal-standin.so)
	@$(PY) tools/run_ctests.py --summary $(SUMMARY) --env TSAN_OPTIONS=die_after_fork=0 build/tsan:test_pool,test_stream,test_comm,test_metal

fuzz: build/asan/build.ninja
	@$(NINJA) -C build/asan --quiet tests/fuzz/fuzz_ir
	@mkdir -p build/corpus build/crashes
	@echo "fuzzing the IR for $(FUZZ) s"
	@build/asan/tests/fuzz/fuzz_ir -max_total_time=$(FUZZ) -timeout=20 -verbosity=0 -artifact_prefix=build/crashes/ build/corpus tests/fuzz/corpus \
		&& echo "1 0" >>$(SUMMARY) || { echo "0 1" >>$(SUMMARY); exit 1; }
	@$(NINJA) -C build/asan --quiet tests/fuzz/fuzz_io
	@mkdir -p build/corpus_io
	@echo "fuzzing files of tensors for $$(( $(FUZZ) / 2 )) s"
	@build/asan/tests/fuzz/fuzz_io -max_total_time=$$(( $(FUZZ) / 2 )) -timeout=20 -rss_limit_mb=4096 -verbosity=0 -artifact_prefix=build/crashes/ build/corpus_io tests/fuzz/corpus_io \
		&& echo "1 0" >>$(SUMMARY) || { echo "0 1" >>$(SUMMARY); exit 1; }

standin: setup-run build/release/build.ninja
	@$(MESON) setup --reconfigure build/release >/dev/null
	@$(NINJA) -C build/release --quiet tests/metal/libeas-metal-standin.so library

pytest: $(if $(WANTS_STANDIN),standin)
	@$(MAKE) -s --no-print-directory .venv/.installed
	@EAS_EXPECT_DEVICES=$(EXPECTED) $(METAL) $(PY) -m pytest -q -n $(JOBS) --dist worksteal

# The tests that rest on generated code, as on machines that have less than this one.
ISA_TESTS := $(patsubst %,tests/test_%.py,kernel blocks control integers idioms group products)
isa:
	@$(MAKE) -s --no-print-directory .venv/.installed
	@status=0; for isa in avx2 sse2; do \
		echo "kernels as on $$isa"; \
		EAS_ISA=$$isa EAS_TEST_DEVICES=cpu,ref $(PY) -m pytest -q -n $(JOBS) $(ISA_TESTS) || status=1; \
	done; exit $$status

wheel: setup-wheel
	@sh tools/wheel.sh

docs: setup-docs
	@$(MAKE) -s --no-print-directory .venv/.installed
	@sh tools/docs.sh

soak: setup-soak
	@$(MAKE) --no-print-directory fuzz FUZZ=$(SOAK)
	@$(MAKE) --no-print-directory codegen-fuzz CODEGEN=$$(( $(DIFF) / 10 + 1 )) CODEGEN_SEED=1000000
	@$(MAKE) --no-print-directory diff
	@$(MAKE) --no-print-directory grads
	@$(MAKE) --no-print-directory .venv/.installed
	@EAGER_FUZZ=$(GRAPHS) SHARD_FUZZ=$(SHARDS) EAGER_STACKS=$(STACKS) $(PY) -m pytest -q tests/test_eager_fuzz.py tests/test_shard_fuzz.py tests/test_diff_stacks.py
	@EAS_SOAK=1 $(METAL) $(PY) -m pytest -q tests/test_faults.py tests/test_fork.py tests/test_no_memory.py tests/test_capsules.py tests/test_shard_ops.py tests/test_shard_suite.py
	@$(MAKE) --no-print-directory graphs

# Random graphs of tensors, fused against one operation after another.
graphs: build/release/build.ninja
	@$(MESON) setup --reconfigure build/release >/dev/null
	@$(NINJA) -C build/release --quiet tests/c/test_graph_random libeas-llvm.so
	@EAS_LLVM_LIBRARY=$(CURDIR)/build/release/libeas-llvm.so build/release/tests/c/test_graph_random $(GRAPHS) 1

# The code generator under the address sanitizer: random kernels, run in every way there is, with LLVM linked.
build/asan-llvm/build.ninja: | .venv build
	@CC=$(CLANG) $(MESON) setup build/asan-llvm $(OPTIONS) --buildtype=debugoptimized -Db_ndebug=false -Db_sanitize=address,undefined -Db_lundef=false \
		>build/asan-llvm.log 2>&1 || { cat build/asan-llvm.log; exit 1; }
codegen-fuzz: build/asan-llvm/build.ninja
	@$(NINJA) -C build/asan-llvm --quiet tests/c/fuzz_diff libeas-llvm.so
	@echo "$(CODEGEN) random kernels through the code generator, under the address sanitizer"
	@ASAN_OPTIONS=detect_leaks=0 EAS_LLVM_LIBRARY=$(CURDIR)/build/asan-llvm/libeas-llvm.so build/asan-llvm/tests/c/fuzz_diff $(CODEGEN) $(CODEGEN_SEED) \
		&& echo "1 0" >>$(SUMMARY) || { echo "0 1" >>$(SUMMARY); exit 1; }

# Every instruction set takes its share; the seeds go on from where the last one ended.
diff: build/release/build.ninja
	@$(NINJA) -C build/release --quiet tests/c/fuzz_diff libeas-llvm.so
	@status=0; seed=1; n=$$(( $(DIFF) / 3 + 1 )); \
	for isa in native avx2 sse2; do \
		echo "$$n random kernels on $$isa"; \
		EAS_ISA=$$isa EAS_LLVM_LIBRARY=$(CURDIR)/build/release/libeas-llvm.so build/release/tests/c/fuzz_diff $$n $$seed || status=1; \
		seed=$$(( seed + n )); \
	done; exit $$status

# Derivatives of random kernels, both ways and by differences.
grads: build/release/build.ninja
	@$(NINJA) -C build/release --quiet tests/c/fuzz_grad libeas-llvm.so
	@EAS_LLVM_LIBRARY=$(CURDIR)/build/release/libeas-llvm.so build/release/tests/c/fuzz_grad $(GRADS) 1

# FUNCTIONS="exp tan" takes only those.
sweep: setup-run build/release/build.ninja
	@$(MESON) setup --reconfigure build/release >/dev/null
	@$(NINJA) -C build/release --quiet tools/sweep_math libeas-llvm.so
	@build/release/tools/sweep_math $(FUNCTIONS)

check: setup-check
	@$(PY) tools/check_prose.py
	@$(FORMAT) --dry-run -Werror $(C_FILES)
	@$(PY) -m ruff check .

format: setup-check
	@$(FORMAT) -i $(C_FILES)
	@$(PY) -m ruff check --fix .

bench: setup-bench
	@$(MAKE) -s --no-print-directory .venv/.installed
	@$(PY) -m bench

clean:
	@rm -rf build .venv/.installed
