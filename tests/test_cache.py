"""The disk cache: warm processes never load the compiler; nothing that happens to the folder breaks a run."""

import contextlib
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from support import python

import eas

CODE = """if 1:
    import sys, numpy as np, eas
    from eas import mk
    def make(c):
        @eas.kernel
        def k(a, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(a, i, i < N) * c + 1, i < N)
        return k
    n = 1000
    a = np.arange(n, dtype=np.float32)
    for c in range(int(sys.argv[1])):
        out = np.zeros_like(a)
        make(float(c))(a, out, n, BLOCK=128)
        assert (out == a * c + 1).all(), c
    maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''
    s = eas.stats()
    print('ok', 'libeas-llvm' in maps, s['compiles'], s['disk_hits'], s['disk_bad'], s['compiler_loaded'])
"""


def entries(folder):
    return [os.path.join(d, f) for d, _, fs in os.walk(folder) for f in fs]


def have_compiler():
    with tempfile.TemporaryDirectory() as d:
        return python(CODE, "1", env={"EAS_CACHE_DIR": d}).stdout.split()[5] == "True"


@unittest.skipUnless(sys.platform == "linux" and have_compiler(), "no compiler module")
class DiskCache(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = os.path.join(tmp.name, "cache")

    def run_code(self, n=3, **env):
        return python(CODE, str(n), env={"EAS_CACHE_DIR": self.dir, **env}).stdout.split()

    def test_warm_process_does_not_load_the_compiler(self):
        ok, mapped, compiles, *_ = self.run_code()
        self.assertEqual((ok, mapped, compiles), ("ok", "True", "3"))
        ok, mapped, compiles, hits, bad, loaded = self.run_code(PYTHONHASHSEED="123")
        self.assertEqual((ok, mapped, compiles, hits, bad, loaded), ("ok", "False", "0", "3", "0", "False"))

    def test_entries_are_private(self):
        self.run_code()
        self.assertTrue(entries(self.dir))
        for f in entries(self.dir):
            self.assertEqual(stat.S_IMODE(os.stat(f).st_mode) & 0o077, 0, f)

    def test_damaged_entries_are_rebuilt(self):
        def truncate(data):
            return data[: len(data) // 2]

        def flip(data):
            i = random.randrange(len(data))
            return data[:i] + bytes([data[i] ^ (1 << random.randrange(8))]) + data[i + 1 :]

        self.run_code()
        random.seed(5)
        for damage in (truncate, flip, lambda d: b"", lambda d: os.urandom(len(d)), lambda d: d + b"x", flip, flip, flip):
            for f in entries(self.dir):
                data = open(f, "rb").read()
                with open(f, "wb") as out:
                    out.write(damage(data))
            self.assertEqual(self.run_code()[0], "ok")
            self.assertEqual(self.run_code()[:3], ["ok", "False", "0"], "the rebuilt entries are good")

    def test_swapped_entries_are_noticed(self):
        self.run_code()
        files = sorted(entries(self.dir))
        images = [open(f, "rb").read() for f in files]
        for f, data in zip(files, images[1:] + images[:1]):
            with open(f, "wb") as out:
                out.write(data)
        self.assertEqual(self.run_code()[0], "ok")

    def test_unusable_folders_mean_memory_only(self):
        file = self.dir + "-file"
        open(file, "w").close()
        for folder in (file, "/proc/nowhere", file + "/below"):
            self.assertEqual(python(CODE, "1", env={"EAS_CACHE_DIR": folder}).stdout.split()[0], "ok")

    def test_folder_that_others_can_write_is_refused(self):
        os.makedirs(self.dir)
        os.chmod(self.dir, 0o777)
        self.assertEqual(self.run_code()[0], "ok")
        self.assertEqual(entries(self.dir), [])

    def test_16_processes_with_kills(self):
        random.seed(11)
        env = {**os.environ, "EAS_CACHE_DIR": self.dir, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(eas.__file__)), *sys.path])}

        def start():
            return subprocess.Popen([sys.executable, "-c", CODE, "12"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        procs = [start() for _ in range(16)]
        victims = random.sample(procs, 6)
        for p in victims:
            time.sleep(random.uniform(0.01, 0.15))
            p.send_signal(signal.SIGKILL)
        for f in entries(self.dir)[::2]:
            try:
                os.truncate(f, random.randrange(64))
            except OSError:
                pass
        for p in procs:
            out, err = p.communicate(timeout=120)
            if p not in victims:
                self.assertEqual(p.returncode, 0, err)
                self.assertTrue(out.startswith("ok"), out)
        self.assertEqual(self.run_code(12)[0], "ok")
        ok, mapped, compiles, *_ = self.run_code(12)
        self.assertEqual((ok, mapped, compiles), ("ok", "False", "0"))

    def test_fifos_and_links_in_place_of_files_do_not_block(self):
        self.run_code(1)
        (entry,) = entries(self.dir)
        timing = os.path.join(self.dir, "0" * 64 + ".tune")
        for make in (os.mkfifo, lambda p: os.symlink("/dev/zero", p), lambda p: os.symlink(p, p)):
            for path in entry, timing:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                make(path)
            out = python(CODE + "\n    print(eas._eas.tune_export() == '', eas._eas.cache_verify())", "1", env={"EAS_CACHE_DIR": self.dir}, timeout=20)
            self.assertEqual(out.stdout.split()[0], "ok")
            self.assertIn("True (1, 1, ", out.stdout)  # the entry was made anew, the timing is dropped as damaged
            self.assertFalse(os.path.lexists(timing))

    def test_timings_count_and_are_evicted(self):
        os.mkdir(self.dir, 0o700)
        for i in range(300):
            name = os.path.join(self.dir, f"{i:064x}.tune")
            with open(name, "w") as f:
                f.write(f"eas-tune {i:064x} 0.5\n")
            os.chmod(name, 0o600)
            os.utime(name, (1000 + i, 1000 + i))
        self.run_code(1, EAS_CACHE_LIMIT=str(100 * 4096))
        left = sorted(f for f in os.listdir(self.dir) if f.endswith(".tune"))
        self.assertLess(len(left), 100)
        self.assertIn(f"{299:064x}.tune", left)  # the newest
        self.assertEqual(len([f for f in os.listdir(self.dir) if f.endswith(".eas")]), 1)

    def test_temporary_files_of_others_stay(self):
        os.mkdir(self.dir, 0o700)
        others = [".other.tmp", ".tmp", ".1-2.tmp.swp", ".eas-notours", "notes.tmp"]
        ours = os.path.join(self.dir, ".eas-a1B2c3")
        for name in [os.path.join(self.dir, f) for f in others] + [ours]:
            with open(name, "w"):
                pass
            os.utime(name, (1000, 1000))
        young = os.path.join(self.dir, ".eas-d4E5f6")  # somebody is writing it
        with open(young, "w"):
            pass
        self.run_code(1)
        for name in others:
            self.assertTrue(os.path.exists(os.path.join(self.dir, name)), name)
        self.assertTrue(os.path.exists(young))
        self.assertFalse(os.path.exists(ours))

    def where(self, cwd=None, **env):
        """The folder, why there is none, and what was said of that; the folder is the one that it was at the
        first kernel."""
        code = CODE + "\n    import os\n    os.chdir('/')\n    make(77.0)(a, out, n, BLOCK=128)\n    print(repr(eas._eas.cache_dir()))"
        drop = {k: v for k, v in os.environ.items() if k not in ("EAS_CACHE_DIR", "XDG_CACHE_HOME")}
        with mock.patch.dict(os.environ, drop, clear=True):
            r = python(code, "1", env=env, cwd=cwd)
        self.assertEqual(r.stdout.split()[0], "ok")
        return eval(r.stdout.splitlines()[-1]), r.stderr

    def test_a_relative_folder_is_resolved_once(self):
        os.makedirs(self.dir)
        folder, said = self.where(cwd=self.dir, EAS_CACHE_DIR="here/there")
        self.assertEqual(os.path.realpath(folder), os.path.realpath(os.path.join(self.dir, "here/there")))
        self.assertEqual((len(entries(folder)), said), (2, ""))

    def test_a_name_that_is_too_long_is_said(self):
        folder, said = self.where(EAS_CACHE_DIR=os.path.join(self.dir, *["x" * 200] * 10))
        self.assertEqual(folder, "")
        self.assertRegex(said, "EAS_CACHE_DIR is too long .*: compiled kernels are kept in memory only")

    def test_a_home_that_is_not_there_is_not_made(self):
        home = os.path.join(self.dir, "nobody")
        folder, said = self.where(HOME=home)
        self.assertEqual(folder, "")
        self.assertIn(f"there is no folder {home} to keep it in", said)
        self.assertFalse(os.path.exists(self.dir))
        folder, said = self.where(HOME="/", XDG_CACHE_HOME=os.path.join(home, "cache"))
        self.assertEqual((folder, os.path.exists(self.dir)), ("", False))

    def test_homes_that_are_there(self):
        home = os.path.join(self.dir, "somebody")
        os.makedirs(home)
        self.assertEqual(self.where(HOME=home), (os.path.join(home, ".cache", "eas"), ""))
        xdg = os.path.join(home, "c")  # made: its parent is there
        self.assertEqual(self.where(HOME=home, XDG_CACHE_HOME=xdg), (os.path.join(xdg, "eas"), ""))

    def test_a_changed_constant_recompiles(self):
        code = CODE.replace("* c + 1", "* c + 2").replace("a * c + 1", "a * c + 2")
        self.run_code()
        self.assertEqual(python(code, "3", env={"EAS_CACHE_DIR": self.dir}).stdout.split()[:3], ["ok", "True", "3"])

    def test_cli_facts(self):
        r = python("from eas import _eas; print(_eas.cache_dir(), _eas.cache_verify(), _eas.num_threads() > 0)", env={"EAS_CACHE_DIR": self.dir})
        self.assertIn("(0, 0, 0) True", r.stdout)


if __name__ == "__main__":
    unittest.main()
