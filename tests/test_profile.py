"""The profiler, EAS_LOG and eas.explain."""

import json
import os
import tempfile
import unittest

import numpy as np
from support import DEVICES, backend, python, script

import eas
from eas import mk


def make():
    @eas.kernel
    def axpy(x, y, a, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(y, i, mk.fma(mk.load(x, i, i < N), a, mk.load(y, i, i < N)), i < N)

    return axpy


@eas.kernel
def looped(x, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.var(mk.load(x, i))
    for _ in mk.range(N):
        v.set(v.value * 0.5)
    mk.store(x, i, v)


class Profile(unittest.TestCase):
    def arrays(self, n=512):
        return np.ones(n, np.float32), np.zeros(n, np.float32)

    def test_counts_on_every_device(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                k, (x, y) = make(), self.arrays()
                with eas.profile() as p:
                    for _ in range(3):
                        k(x, y, 2.0, 512, BLOCK=128)
                (r,) = p.rows
                self.assertEqual((r.kernel, r.device, r.calls), ("axpy", device, 3))
                self.assertEqual((r.bytes, r.flops), (3 * 512 * 12, 3 * 512 * 2))
                self.assertTrue(0 < r.seconds < p.seconds)
                self.assertEqual(r.compiles, 1)
                self.assertTrue(r.file.endswith("test_profile.py"))
                np.testing.assert_array_equal(y, 6)

    def test_loops_count_by_their_trips(self):
        x = np.ones(64, np.float32)
        with eas.profile() as p:
            looped(x, 10, BLOCK=64, _grid=1)
            looped(x, 20, BLOCK=64, _grid=1)
        self.assertEqual(p.rows[0].flops, 64 * 30)

    def test_launches_that_run_as_one_are_counted(self):
        """Steps of a plan that do not depend on each other are one launch, unless a profile looks at them."""
        import eager

        x = [eager.constant(np.full((n, 40), 2, np.float32)) for n in (30, 500, 7000)]
        f = eager.compile(lambda x: [(v * 3 + 1).sum(axis=1) for v in x])
        eager.realize_all(*f(x))
        before = eager.stats()["steps"]
        eager.realize_all(*f(x))
        self.assertEqual(eager.stats()["steps"] - before, 1)
        with eas.profile() as p:
            y = f(x)
            eager.realize_all(*y)
        self.assertEqual([(r.kernel, r.calls) for r in p.rows], [("reduce_sum", 3)])
        for v in y:
            np.testing.assert_array_equal(v.numpy(), 280)

    def test_nothing_is_recorded_outside(self):
        k, (x, y) = make(), self.arrays()
        with eas.profile() as p:
            pass
        k(x, y, 2.0, 512, BLOCK=128)
        self.assertEqual(p.rows, [])

    def test_streams(self):
        for device in DEVICES:
            with self.subTest(device):
                k = make()
                x, y = (eas.tensor(a, device=device) for a in self.arrays())
                s = eas.Stream(device)
                with eas.profile() as p:
                    k(x, y, 2.0, 512, BLOCK=128, _sync=False, _stream=s)
                    k(x, y, 2.0, 512, BLOCK=128)
                    s.synchronize()
                self.assertEqual(p.rows[0].calls, 2)
                events = [e for e in json.loads(self.trace(p))["traceEvents"] if e.get("cat") == "launch"]
                self.assertEqual(len({e["tid"] for e in events}), 2)

    def test_an_error_leaves_all_as_it_was(self):
        k, (x, y) = make(), self.arrays()
        with self.assertRaises(IndexError), eas.profile():
            k(x, y, 2.0, 1000, BLOCK=128)
        with eas.profile() as p:
            k(x, y, 2.0, 512, BLOCK=128)
        self.assertEqual(p.rows[0].calls, 1)

    def test_one_at_a_time(self):
        with eas.profile(), self.assertRaisesRegex(RuntimeError, "one at a time"):
            eas.profile().__enter__()
        with self.assertRaisesRegex(RuntimeError, "with eas.profile"):
            eas.profile().rows  # noqa: B018

    def trace(self, p):
        with tempfile.TemporaryDirectory() as d:
            p.save(os.path.join(d, "t.json"))
            with open(os.path.join(d, "t.json")) as f:
                return f.read()

    def test_trace(self):
        k, (x, y) = make(), self.arrays()
        with eas.profile() as p:
            k(x, y, 2.0, 512, BLOCK=128)
        events = json.loads(self.trace(p))["traceEvents"]
        kinds = [e["cat"] for e in events if e["ph"] == "X"]
        self.assertEqual(kinds, ["compile", "launch"])
        launch = events[-1]
        self.assertEqual((launch["name"], launch["args"]["grid"]), ("axpy [BLOCK=128]", [4, 1, 1]))
        self.assertIn("test_profile.py:", launch["args"]["line"])

    def test_configurations_are_told_apart(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                k, (x, y) = make(), self.arrays()
                with eas.profile() as p:
                    k(x, y, 2.0, 512, BLOCK=64)
                    k(x, y, 2.0, 512, BLOCK=256)
                    k(x, y, 2.0, 512, BLOCK=256)
                rows = {r.config: r for r in p.rows}
                self.assertEqual({c: (r.kernel, r.calls, r.compiles) for c, r in rows.items()}, {"BLOCK=64": ("axpy", 1, 1), "BLOCK=256": ("axpy", 2, 1)})
                for r in p.rows:
                    self.assertEqual(r.bytes, r.calls * 512 * 12)
                table = str(p).splitlines()
                self.assertEqual(sorted(line.split("]")[0] + "]" for line in table[1:]), ["axpy [BLOCK=256]", "axpy [BLOCK=64]"])
                self.assertEqual(len({len(line) for line in table}), 1)
                events = [e for e in json.loads(self.trace(p))["traceEvents"] if e["ph"] == "X"]
                self.assertEqual([e["name"] for e in events if e["cat"] == "launch"], ["axpy [BLOCK=64]", "axpy [BLOCK=256]", "axpy [BLOCK=256]"])
                self.assertEqual({e["name"] for e in events if e["cat"] == "compile"}, {"axpy [BLOCK=64]", "axpy [BLOCK=256]"})
                self.assertEqual([e["args"]["config"] for e in events if e["cat"] == "launch"], ["BLOCK=64", "BLOCK=256", "BLOCK=256"])

    def test_types_are_told_apart(self):
        k, (x, y) = make(), self.arrays()
        with eas.profile() as p:
            k(x, y, 2.0, 512, BLOCK=64)
            k(x.astype("f8"), y.astype("f8"), 2.0, 512, BLOCK=64)
        self.assertEqual([r.calls for r in p.rows], [1, 1])
        self.assertEqual({r.types.split()[0] for r in p.rows}, {"f32[]", "f64[]"})
        self.assertIn("axpy [BLOCK=64; f64[] f64[]", str(p))

    def test_values_of_a_configuration(self):
        def twice(v):
            return v + v

        @eas.kernel
        def apply(x, f: eas.constexpr, T: eas.constexpr, mode: eas.constexpr):
            i = mk.arange(0, 8)
            mk.store(x, i, f(mk.load(x, i)))

        x = np.ones(8, np.float32)
        with eas.profile() as p:
            apply(x, f=twice, T=(2, 3), mode="a\"b", _grid=1)
        self.assertEqual(p.rows[0].config, "f=twice, T=(2, 3), mode='a\"b'")
        json.loads(self.trace(p))

    def test_table(self):
        k, (x, y) = make(), self.arrays()
        with eas.profile() as p:
            k(x, y, 2.0, 512, BLOCK=128)
        self.assertIn("axpy", str(p))
        self.assertIn("GB/s", str(p))
        self.assertTrue(0 < p.rows[0].roofline < 2)


class Explain(unittest.TestCase):
    def test_what_differs(self):
        k, (x, y) = make(), (np.ones(8, np.float32), np.ones(8, np.float32))
        self.assertIn("not traced yet", eas.explain(k))
        k(x, y, 2.0, 8, BLOCK=8)
        k(x, y, 2.0, 8, BLOCK=4)
        k(x.astype(np.float16), y, 2.0, 8, BLOCK=4)
        text = eas.explain(k)
        self.assertIn("1. the first call", text)
        self.assertNotIn("(0.00 ms", text)
        self.assertIn("2. meta 'BLOCK' was 8, is 4", text)
        self.assertRegex(text, "3. argument 'x' was .*f32.*, is .*f16")
        with self.assertRaisesRegex(TypeError, "takes a kernel"):
            eas.explain(3)

    def test_log(self):
        code = """
import eas, numpy as np
from eas import mk
@eas.kernel
def fill(x, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, i, 1.0, i < N)
x = np.zeros(64, np.float32)
fill(x, 64, BLOCK=64)
fill(x, 64, BLOCK=32)
"""
        with tempfile.TemporaryDirectory() as d:
            run = f"import runpy; runpy.run_path({script(code)!r})"
            env = {"EAS_LOG": "info", "EAS_CACHE_DIR": d, "EAS_BACKEND": "cpu"}
            first, second = (python(run, env=env).stderr for _ in range(2))
        self.assertIn("traced fill in", first)
        self.assertIn("meta 'BLOCK' was 64, is 32", first)
        self.assertIn("not on disk", first)
        self.assertIn("found on disk", second)
        self.assertEqual(python(run, env={"EAS_LOG": ""}).stderr, "")


if __name__ == "__main__":
    unittest.main()
