"""Autotune: what is measured, kept, left out and put back."""

import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from support import DEVICES, backend, python, script

import eas
from eas import _eas, mk

BLOCKS = (16, 32, 64)
PROCESSES = int(os.environ.get("EAS_TEST_PROCESSES", "5"))


def tuned(**kw):
    kw = {"configs": [eas.Config(meta={"BLOCK": b}) for b in BLOCKS], "key": ["N"], "warmup": 0, "repeat": 2, **kw}

    @eas.autotune(**kw)
    @eas.kernel
    def more(x, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(x, i, mk.load(x, i, i < N) + 1, i < N)

    return more


class Autotune(unittest.TestCase):
    def test_result_as_of_one_launch_on_every_device(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                for x in (np.zeros(100, np.float32), eas.zeros(100, device=device)):
                    tuned(repeat=3)(x, 100)
                    got = x if isinstance(x, np.ndarray) else x.to("cpu").numpy()
                    np.testing.assert_array_equal(got, 1)

    def test_restore(self):
        x = np.zeros(100, np.float32)
        with mock.patch.object(_eas, "tune_load", return_value=None):  # an earlier run of this test may have left its times
            tuned(restore=[], repeat=997)(x, 100)
        self.assertGreater(x[0], 1)
        with self.assertRaisesRegex(ValueError, "restore names 'y'"):
            tuned(restore=["y"], repeat=998)(x, 100)

    def test_tie_band(self):
        self.assertEqual(_eas.tune_choose([1.019, 1.0, 2.0]), 0)
        self.assertEqual(_eas.tune_choose([1.03, 1.0, 1.0]), 1)
        self.assertEqual(_eas.tune_choose([-1.0, 3.0]), 1)
        self.assertEqual(_eas.tune_choose([-1.0]), -1)
        self.assertEqual(_eas.tune_choose([]), -1)

    def test_deterministic_never_times(self):
        k = tuned(deterministic=True)
        with mock.patch("eas.runtime.Runtime.benchmark", side_effect=AssertionError("timed")):
            x = np.zeros(64, np.float32)
            k(x, 64)
        self.assertEqual(k.choose(x, 64).meta["BLOCK"], BLOCKS[0])

    def test_prune(self):
        x = np.zeros(64, np.float32)
        self.assertEqual(tuned(prune=lambda configs, args: configs[2:]).choose(x, 64).meta["BLOCK"], BLOCKS[2])
        with self.assertRaisesRegex(ValueError, "left out by prune"):
            tuned(prune=lambda configs, args: [])(x, 64)
        with self.assertRaisesRegex(ValueError, "none of the configs"):
            tuned(prune=lambda configs, args: [eas.Config(meta={"BLOCK": 1})])(x, 64)

    def test_beyond_limits(self):
        @eas.autotune(configs=[eas.Config(meta={"B": b}) for b in (1 << 14, 32)], key=["N"], warmup=0, repeat=1)
        @eas.kernel
        def group(x, N, B: eas.constexpr):
            t = mk.tid(0, B)
            mk.store(x, t, mk.cast(t, mk.f32), t < N)

        x = np.zeros(32, np.float32)
        self.assertEqual(group.choose(x, 32, _grid=1).meta["B"], 32)

    def test_fresh_processes_choose_alike(self):
        code = """
import eas, numpy as np
from eas import mk
@eas.autotune(configs=[eas.Config(meta={"BLOCK": b}) for b in (16, 17, 18, 64)], key=["N"], warmup=1, repeat=3)
@eas.kernel
def more(x, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, i, mk.load(x, i, i < N) + 1, i < N)
x = np.zeros(1000, np.float32)
print(more.choose(x, 1000).meta["BLOCK"], list(more.timings.values()))
"""
        with tempfile.TemporaryDirectory() as d:
            run, file = f"import runpy; runpy.run_path({script(code)!r})", os.path.join(d, "timings")
            one, two = os.path.join(d, "one"), os.path.join(d, "two")
            with ThreadPoolExecutor(3) as pool:  # three begin with nothing at once; then others find what they left
                said = {r.stdout for r in pool.map(lambda _: python(run, env={"EAS_CACHE_DIR": one}), range(PROCESSES))}
            chosen = {s.split()[0] for s in said}
            self.assertEqual(len(said), 1, said)
            count = python(f"import eas; print(eas.tuning.export({file!r}))", env={"EAS_CACHE_DIR": one}).stdout
            self.assertEqual(count, "4\n")
            python(f"import eas; assert eas.tuning.import_({file!r}) == 4", env={"EAS_CACHE_DIR": two})
            self.assertEqual(python(run, env={"EAS_CACHE_DIR": two}).stdout.split()[0], chosen.pop())
            files = [f for f in os.listdir(two) if f.endswith(".tune")]
            self.assertEqual((len(files), os.stat(os.path.join(two, files[0])).st_mode & 0o777), (4, 0o600))
            with open(os.path.join(two, files[0]), "w") as f:
                f.write("eas-tune nothing\n")
            python("import eas; eas._eas.cache_verify()", env={"EAS_CACHE_DIR": two})
            self.assertEqual(len([f for f in os.listdir(two) if f.endswith(".tune")]), 3)
            subprocess.run([sys.executable, "-m", "eas", "cache", "clear"], env={**os.environ, "EAS_CACHE_DIR": two}, check=True, capture_output=True)
            self.assertEqual([f for f in os.listdir(two) if f.endswith(".tune")], [])
            with open(file, "a") as f:
                f.write("nonsense\n")
            bad = python(f"import eas; eas.tuning.import_({file!r})", env={"EAS_CACHE_DIR": two}, check=False)
            self.assertIn("line 5 is no timing", bad.stderr)


if __name__ == "__main__":
    unittest.main()
