"""The suite with every tensor in parts (tests/shard_everything.py). A sample runs in `make test`; `make soak`
runs all files of SUITES on meshes of 2, 4, 8 and 2 x 4.

SUITES names for each file the tests that cannot hold for sharded tensors, and why: they say something of how
a program runs, not of its values."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
SOAK = os.environ.get("EAS_SOAK") == "1"

BITS = "compares bits with another order of summation: sums over devices are joined in a tree"
SIZES = "one program for several sizes: a sharded program is made for each"
COUNTS = "counts kernels or programs: collectives end a kernel, and a mesh has programs of its own"
MEMORY = "measures memory, or looks at addresses and storage of the whole"
LINES = "the line is that of the constant, which the plugin lays out lazily: data is checked when it is computed"
DEVICE = "names a device"

SUITES = {
    "test_eager_fuzz.py": {},
    "test_eager_scatter.py": {"devices_agree": BITS, "order_of_indices": BITS, "of_something_computed": BITS},
    "test_eager_index.py": {"device": DEVICE},
    "test_eager_ops.py": {"device": DEVICE},
    "test_eager_dtypes.py": {"means_and_variances": BITS},
    "test_eager_products.py": {"rows_of_memory_are_summed_in_one_step": COUNTS, "windows_are_not_copied": COUNTS},
    "test_eager.py": {
        "one_program_for_all": COUNTS,
        "run_time_errors_name_the_line": LINES,
        "test_sharing": MEMORY,
        "results_know_their_operation": "asks for the operation of a constant, which is `shard` here",
        "every_way_to_index": LINES,
        "bits_are_those_of_a_chain": BITS,
        "device": DEVICE,
    },
    "test_diff.py": {"dynamic": SIZES, "twice": COUNTS, "keeps_less": MEMORY, "device": DEVICE},
    "test_loops.py": {"dynamic": SIZES, "symbolic": SIZES, "same_bits_as_unrolled": BITS, "lanes_end": COUNTS, "one_branch_runs": COUNTS, "device": DEVICE},
    "test_nn.py": {"labels_and_tokens": LINES, "jax_way": COUNTS},
    "test_optim.py": {"launches": COUNTS},
    "test_vmap.py": {},
    "test_vmap_matmul.py": {},
    "test_vmap_ready.py": {},
    "test_random.py": {},
    "test_random_keys.py": {},
    "test_random_more.py": {},
    "test_complex.py": {},
    "test_fft.py": {},
    "test_math.py": {},
    "test_models.py": {},
}
SAMPLE = ("test_eager_fuzz.py", "test_vmap.py", "test_eager_dtypes.py")


def run(name, mesh, seeds):
    left_out = " and ".join(f"not {k}" for k in SUITES[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "shard_everything", "-p", "no:cacheprovider", name, *(["-k", left_out] if left_out else [])]
    env = {**os.environ, "SHARD_EVERYTHING": mesh, "EAGER_FUZZ": str(seeds), "PYTHONPATH": str(TESTS)}
    r = subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-3000:]


@pytest.mark.parametrize("name,mesh", [(n, m) for n in SUITES for m in ("2", "4", "8", "2x4")] if SOAK else [(SAMPLE[0], "2"), (SAMPLE[1], "2x4"), (SAMPLE[2], "4")])
def test_in_parts(name, mesh):
    run(name, mesh, 150 if SOAK else 25)
