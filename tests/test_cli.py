"""The command line: what it prints, and how it says no."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import numpy as np
from support import DEVICES, python

from eas import _eas
from eas.cli import main
from eas.cli.arguments import DTYPES

SOURCE = """
import eas
from eas import mk
print("loading")

@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)

@eas.kernel
def scale(x, s, N, BLOCK: eas.constexpr = 8):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, i, mk.load(x, i, i < N) * s, i < N)

@eas.kernel
def race(x, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, i % 4, i)

@eas.kernel
def same(x, y, N, BLOCK: eas.constexpr = 8):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N), i < N)

@eas.kernel
def broken(x, N, BLOCK: eas.constexpr):
    undefined_name

tuned = eas.autotune(configs=[eas.Config(meta={"BLOCK": 16})], key=["N"])(add)
"""
ABC = ["--arg", "a:f32", "--arg", "b:f32", "--arg", "c:f32", "--meta", "BLOCK=64"]


# As docs/tools.md has it: a + b over 3 programs, then the last one alone.
CALLER = '''
#include <stdint.h>
struct call { const uint64_t *slot; const int64_t *count; int64_t grid[3]; uint64_t flags; int64_t id[3]; int (*look)(void *); void *look_ctx; };
struct fault { uint64_t set, insn; int64_t index, program, thread; };
void kernel(const struct call *, int64_t first, int64_t last, void *scratch, struct fault *);
_Alignas(64) static char scratch[1 << 16];
int main(void)
{
    enum { BLOCK = 64, N = 3 * BLOCK - 5 };
    static float a[N], b[N], c[3 * BLOCK];
    for (int i = 0; i < N; i++)
        a[i] = (float)i, b[i] = 100;
    uint64_t slot[] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c, N};
    int64_t count[] = {N, N, N, 0};
    struct call k = {slot, count, {3, 1, 1}};
    struct fault f = {0};
    kernel(&k, 0, 3, scratch, &f);
    for (int i = 0; i < 3 * BLOCK; i++)
        if (c[i] != (i < N ? (float)i + 100 : 0))
            return 1;
    for (int i = 0; i < 3 * BLOCK; i++)
        c[i] = 0;
    k.id[0] = 2;
    kernel(&k, 2, 3, scratch, &f);
    return c[2 * BLOCK - 1] != 0 || c[2 * BLOCK] != 2 * BLOCK + 100 || f.set;
}
'''


class Command(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.file = self.path("kernels_of_cli.py")
        with open(self.file, "w") as f:
            f.write(SOURCE)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def eas(self, *argv, code=0):
        """Standard output of a command that must end with this exit code; errors are kept in self.err."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                got = main(list(argv))
            except SystemExit as e:
                got = e.code
        self.err = err.getvalue()
        self.assertEqual(got, code, self.err)
        self.raw = out.buffer.getvalue()
        return self.raw.decode("utf-8", "replace")

    def refused(self, *argv, code=2, says):
        self.assertEqual(self.eas(*argv, code=code), "")
        self.assertIn(says, self.err)
        self.assertNotIn("Traceback", self.err)


class Compile(Command):
    def test_forms(self):
        for form, has in {"ir": "kernel add(", "msl": "kernel void add(", "opencl": "__kernel", "llvm": "define", "asm": ".text"}.items():
            with self.subTest(form):
                text = self.eas("compile", self.file + ":add", *ABC, "--emit", form)
                self.assertIn(has, text)
                self.assertNotIn("loading", text)

    def test_object(self):
        self.eas("compile", self.file + ":add", *ABC, "--emit", "obj", "-o", self.path("k.o"))
        with open(self.path("k.o"), "rb") as f:
            self.assertEqual(f.read(4), b"\x7fELF")

    @unittest.skipUnless(shutil.which("cc") or shutil.which("clang-19"), "no C compiler")
    def test_an_object_is_called_from_c(self):
        self.eas("compile", self.file + ":add", *ABC, "--emit", "obj", "-o", self.path("k.o"))
        with open(self.path("main.c"), "w") as f:
            f.write(CALLER)
        cc = shutil.which("cc") or shutil.which("clang-19")
        subprocess.run([cc, "-o", self.path("main"), self.path("main.c"), self.path("k.o")], check=True)
        subprocess.run([self.path("main")], check=True)

    def test_autotuned(self):
        self.assertIn("[16]", self.eas("compile", self.file + ":tuned", *ABC[:-2]))

    def test_every_dtype(self):
        for dtype in DTYPES:
            self.assertIn(f"buf<{dtype}> x", self.eas("compile", self.file + ":same", "--arg", f"x:{dtype}", "--arg", f"y:{dtype}"))

    def test_refused(self):
        add = self.file + ":add"
        self.refused("compile", self.file, says="say which")
        self.refused("compile", self.file + ":nope", says="nothing of that name")
        self.refused("compile", self.path("none.py") + ":k", says="no such file")
        self.refused("compile", "no_such_module:k", says="no module")
        self.refused("compile", add, "--arg", "a:f32", says="'b' is missing")
        self.refused("compile", add, *ABC[:-2], says="--meta BLOCK=VALUE")
        self.refused("compile", add, *ABC, "--arg", "d:f32", says="no such parameter")
        self.refused("compile", add, *ABC, "--arg", "a:f32", says="given twice")
        self.refused("compile", add, "--arg", "a:f33", says="unknown dtype 'f33'")
        self.refused("compile", add, "--arg", "a=nowhere.npy", "--arg", "b:f32", "--arg", "c:f32", "--meta", "BLOCK=8", says="no file")
        self.refused("compile", add, *ABC, "--meta", "BLOCK", says="NAME=VALUE")
        self.refused("compile", add, *ABC, "--emit", "wasm", says="invalid choice")

    def test_errors_of_the_kernel(self):
        self.refused("compile", self.file + ":broken", "--arg", "x:f32", "--meta", "BLOCK=8", code=1, says="undefined_name")
        self.assertIn("kernels_of_cli.py:28", self.err)

    def test_errors_of_the_file(self):
        with open(self.path("bad_syntax.py"), "w") as f:
            f.write("x = (\n")
        self.refused("compile", self.path("bad_syntax.py") + ":k", code=1, says="bad_syntax.py:1")


class Run(Command):
    def ir(self, name="add", *args):
        with open(self.path("k.ir"), "w") as f:
            f.write(self.eas("compile", f"{self.file}:{name}", *(args or ABC)))
        return self.path("k.ir")

    def test_prints(self):
        self.assertEqual(self.eas("run", self.ir(), "--size", "4", "--arg", "a=arange", "--arg", "b=ones"), "c: [1. 2. 3. 4.]\n")

    def test_files(self):
        x = np.arange(5, dtype=np.float32)
        np.save(self.path("x.npy"), x)
        out = self.path("out.npy")
        self.eas("run", self.ir(), "--size", "5", "--arg", f"a={self.path('x.npy')}", "--arg", "b=2", "--arg", "c=zeros", "--out", f"c={out}")
        np.testing.assert_array_equal(np.load(out), x + 2)

    def test_every_dtype_on_every_device(self):
        for dtype in DTYPES:
            ir = self.ir("same", "--arg", f"x:{dtype}", "--arg", f"y:{dtype}")
            for device in DEVICES:
                if dtype == "f64" and not _eas.limits(device)["f64"]:
                    continue
                with self.subTest(dtype=dtype, device=device):
                    got = self.eas("run", ir, "--size", "3", "--arg", "x=ones", "--device", device)
                    self.assertEqual(got.replace(".", ""), "y: [ True  True  True]\n" if dtype == "bool" else "y: [1 1 1]\n")

    def test_empty(self):
        self.assertEqual(self.eas("run", self.ir(), "--size", "0"), "c: []\n")

    def test_random_is_repeatable(self):
        ir = self.ir()
        self.assertEqual(self.eas("run", ir, "--seed", "3"), self.eas("run", ir, "--seed", "3"))

    def test_refused(self):
        ir = self.ir()
        self.refused("run", self.path("no.ir"), says="No such file")
        self.refused("run", self.file, says="line 2")
        self.refused("run", ir, "--arg", "N=x", says="give a number")
        self.refused("run", ir, "--arg", "a:f16", says="parameter is f32")
        self.refused("run", ir, "--device", "abacus", says="unknown backend 'abacus'")
        self.refused("run", ir, "--grid", "1,2,3,4", says="1 to 3 numbers")
        self.refused("run", ir, "--out", "a=x.npy", says="the kernel writes c")
        self.refused("run", ir, "--size", "-1", says="0 or more")
        self.refused("run", ir, "--arg", "c[3]=zeros", "--arg", "N=100", "--grid", "2", code=1, says="IndexError")


class Others(Command):
    def test_bench(self):
        found = json.loads(self.eas("bench", self.file + ":add", *ABC, "--seconds", "0.01", "--json"))
        self.assertEqual((found["kernel"], found["bytes"]), ("add", 3 * 4096))
        self.assertIn("GB/s", self.eas("bench", self.file + ":scale", "--arg", "x:bf16", "--arg", "s=0.5", "--seconds", "0.01"))

    def test_bench_on_every_device(self):
        for device in DEVICES:
            with self.subTest(device):
                self.assertIn(f"on {device}", self.eas("bench", self.file + ":add", *ABC, "--seconds", "0.001", "--device", device))

    def test_check(self):
        self.assertIn("nothing found", self.eas("check", self.file + ":add", *ABC))
        found = self.eas("check", self.file + ":race", "--arg", "x:i64", "--meta", "BLOCK=64", code=1)
        self.assertIn("write-write race", found)

    def test_info(self):
        text, facts = self.eas("info"), json.loads(self.eas("info", "--json"))
        self.assertIn("devices", text)
        self.assertRegex(facts["llvm"], r"^\d+\.\d+")
        self.assertIn(f"LLVM {facts['llvm']}", text)
        self.assertEqual([d["name"] for d in facts["devices"] if d["unavailable"] is None], list(DEVICES))

    def test_cache(self):
        env = {"EAS_CACHE_DIR": self.path("cache")}
        run = "import sys; from eas.cli import main; sys.exit(main(sys.argv[1:]))"
        python(run, "bench", self.file + ":add", *ABC, "--seconds", "0.001", "--device", "cpu", env=env)
        self.assertIn(": 1 entries", python(run, "cache", "stats", env=env).stdout)
        self.assertIn("1 entries are good", python(run, "cache", "verify", env=env).stdout)
        (entry,) = (e.path for e in os.scandir(self.path("cache")) if e.name.endswith(".eas"))
        with open(entry, "r+b") as f:
            f.seek(200)
            f.write(b"\xff" * 16)
        damaged = python(run, "cache", "verify", env=env, check=False)
        self.assertEqual((damaged.returncode, "1 were damaged" in damaged.stdout), (1, True))
        python(run, "cache", "clear", env=env)
        self.assertIn(": 0 entries", python(run, "cache", "stats", env=env).stdout)
        self.assertIn("off", python(run, "cache", "stats", env={"EAS_CACHE_DIR": "off"}).stdout)

    def test_as_a_program(self):
        code = "import runpy, sys; sys.argv[0] = 'eas'; runpy.run_module('eas', run_name='__main__')"
        self.assertIn("COMMAND", python(code, "--help").stdout)
        self.assertEqual(python(code, check=False).returncode, 2)
        piped = python(code, "compile", self.file + ":add", *ABC, "--emit", "asm")
        self.assertEqual(piped.stdout.count("loading"), 0)


class Doctor(Command):
    def test_all_is_well(self):
        for device in DEVICES:
            with self.subTest(device):
                from eas.cli import doctor

                self.assertEqual(doctor._inside(device), 0)

    def test_says_what_is_wrong(self):
        with mock.patch("eas.cli.doctor._examine", lambda d: ["add: wrong result"]):
            said = self.eas("doctor", "--device", "cpu", code=1)
        self.assertIn("BAD  cpu", said)
        self.assertIn("-> ", said)

    def test_absent(self):
        absent = [("mps", "", "there is none")]
        with mock.patch("eas.devices", lambda: absent):
            self.assertIn("not available: there is none", self.eas("doctor", "--device", "metal", code=1))
        self.refused("doctor", "--device", "abacus", says="there are cpu")

    def test_a_crash_is_a_finding(self):
        from eas.cli import doctor

        with mock.patch("sys.executable", "/bin/false"):
            self.assertIsInstance(doctor._examine("cpu"), list)
        self.assertEqual(doctor._examine("ref"), [])


class Version(unittest.TestCase):
    def test_version(self):
        r = python("import sys; sys.argv = ['eas', '--version']; from eas.cli import main; main()")
        self.assertEqual(r.stdout.strip(), f"eas {_eas.__version__}")


if __name__ == "__main__":
    unittest.main()
