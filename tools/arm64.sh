#!/bin/sh
# arm64.sh [TEST,TEST...]: builds libeas, its compiler and the C tests for AArch64 on another Linux machine, and runs the tests under qemu.
#
# Debian's cross compiler does the building. LLVM's static libraries for arm64 (and zlib, zstd, cmocka) are Debian packages that are unpacked into
# build/arm64-root, not installed: the packages of this machine stay as they are. llvm-config of this machine tells which libraries to link; a
# wrapper around it says where those of arm64 are.
set -eu
cd "$(dirname "$0")/.."
root=$PWD/build/arm64-root
build=build/arm64
say() { printf '%s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

have() { command -v "$1" >/dev/null 2>&1; }
missing=
have aarch64-linux-gnu-gcc || missing="$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
have aarch64-linux-gnu-g++ || missing="$missing g++-aarch64-linux-gnu"
have qemu-aarch64 || missing="$missing qemu-user"
if [ -n "$missing" ]; then
    say "installing with apt:$missing"
    as_root apt-get update -q >/dev/null
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
fi

packages="llvm-19-dev libzstd-dev libzstd1 zlib1g-dev zlib1g libcmocka-dev libcmocka0"
if [ ! -f "$root/.complete" ]; then
    say "unpacking for arm64: $packages"
    mkdir -p "$root/packages"
    dpkg --print-foreign-architectures | grep -q '^arm64$' || as_root dpkg --add-architecture arm64
    as_root apt-get update -q >/dev/null
    for p in $packages; do (cd "$root/packages" && apt-get download -q "$p:arm64" >/dev/null 2>&1) || { say "no package $p:arm64"; exit 1; }; done
    for p in "$root"/packages/*.deb; do dpkg -x "$p" "$root"; done
    touch "$root/.complete"
fi

# ---- a cross file for meson ----

cat >"$root/llvm-config" <<END
#!/bin/sh
llvm-config-19 "\$@" | sed -e "s,/usr/lib/llvm-19,$root/usr/lib/llvm-19,g"
END
chmod +x "$root/llvm-config"
cat >"$root/cross.txt" <<END
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkg-config = 'pkg-config'
llvm-config = '$root/llvm-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu']
[properties]
sys_root = '$root'
pkg_config_libdir = '$root/usr/lib/aarch64-linux-gnu/pkgconfig'
needs_exe_wrapper = true
[built-in options]
c_args = ['-isystem', '$root/usr/include']
c_link_args = ['-L$root/usr/lib/aarch64-linux-gnu']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'cortex-a72'
endian = 'little'
END

python=.venv/bin/python
export PATH="$PWD/.venv/bin:$PATH"
if [ ! -f $build/build.ninja ]; then
    $python -m mesonbuild.mesonmain setup $build --cross-file "$root/cross.txt" -Dpython=disabled -Dmpi=disabled >build/arm64.log 2>&1 ||
        { cat build/arm64.log; exit 1; }
fi
$python -m mesonbuild.mesonmain setup --reconfigure $build >/dev/null
.venv/bin/ninja -C $build --quiet
EAS_EMULATED=1 QEMU_LD_PREFIX=/usr/aarch64-linux-gnu LD_LIBRARY_PATH= \
    $python tools/run_ctests.py --wrap "qemu-aarch64 -L /usr/aarch64-linux-gnu" --env "QEMU_SET_ENV=LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu" \
    "$build${1:+:$1}"
