"""Parts of the suite with every tensor in parts (tests/shard_everything.py), on meshes of 2 and, in a soak, of 4 and 8. What a test says of devices, memory, programs and sizes that vary is left out."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
SOAK = os.environ.get("EAS_SOAK") == "1"
SUITES = {
    "test_eager_scatter.py": "not device and not memory",
    "test_eager_index.py": "not device",
    "test_diff.py": "not dynamic and not twice and not keeps_less and not device",
    "test_eager_fuzz.py": "",
    "test_eager_ops.py": "not device",
    "test_loops.py": "not dynamic and not symbolic and not device and not lanes_end and not one_branch_runs",
}
SHORT = {"test_eager_fuzz.py": ""}


@pytest.mark.parametrize("devices", [2, 4, 8] if SOAK else [2])
@pytest.mark.parametrize("name", SUITES if SOAK else SHORT)
def test_in_parts(name, devices):
    chosen = SUITES[name] if SOAK else SHORT[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "shard_everything", "-p", "no:cacheprovider", name, *(["-k", chosen] if chosen else [])]
    env = {**os.environ, "SHARD_EVERYTHING": str(devices), "EAGER_FUZZ": "150" if SOAK else "25", "PYTHONPATH": str(TESTS)}
    r = subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-3000:]
