#!/bin/sh
# wheel.sh: builds a wheel for the newest platform tag that this machine can make, into build/wheels, and tries it in a new virtual environment.
#
# auditwheel (Linux) checks which libraries the wheel needs and names the tag: manylinux_2_36 on Debian 12. What is older takes an image of
# manylinux, as .github/workflows/wheels.yml does. MPI stays outside: a wheel cannot know which one a machine has.
set -eu
cd "$(dirname "$0")/.."
py=.venv/bin/python
export PATH="$PWD/.venv/bin:$PATH"
rm -rf build/wheels build/wheel-try
$py -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps --config-settings=build-dir=build/wheel \
    --config-settings=setup-args=-Dllvm=enabled --config-settings=setup-args=-Dmpi=disabled -w build/wheels/plain .
if [ "$(uname)" = Linux ]; then
    $py -m auditwheel show build/wheels/plain/*.whl
    $py -m auditwheel repair --exclude 'libmpi.so*' -w build/wheels build/wheels/plain/*.whl
else
    mv build/wheels/plain/*.whl build/wheels
fi
python3 -m venv build/wheel-try
build/wheel-try/bin/pip install -q --disable-pip-version-check build/wheels/*.whl
# from a folder without sources, and without anything that this machine has compiled
(cd build/wheel-try && EAS_CACHE_DIR=$PWD/cache bin/python ../../tools/try_wheel.py)
ls build/wheels/*.whl
