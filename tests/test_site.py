"""The documentation site: `make docs` builds it without a dead link, and a browser that follows every link
from the front page arrives everywhere."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRAWLER = """<!doctype html><meta charset="utf-8"><pre id="report">running</pre><script>
(async () => {
  const seen = new Map(), waiting = ["/index.html"], bad = [];
  while (waiting.length) {
    const page = waiting.pop();
    if (seen.has(page)) continue;
    const answer = await fetch(page);
    seen.set(page, new Set());
    if (!answer.ok) { bad.push(page + ": " + answer.status); continue; }
    if (!page.endsWith(".html")) continue;
    const dom = new DOMParser().parseFromString(await answer.text(), "text/html");
    dom.querySelectorAll("[id]").forEach(e => seen.get(page).add(e.id));
    for (const a of dom.querySelectorAll("a[href], img[src], script[src], link[rel=stylesheet]")) {
      const to = new URL(a.getAttribute("href") || a.getAttribute("src"), location.origin + page);
      if (to.origin === location.origin) waiting.push(to.pathname);
    }
  }
  document.getElementById("report").textContent = JSON.stringify({pages: seen.size, bad});
})();
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class TestSite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        r = subprocess.run(["sh", "tools/docs.sh"], cwd=ROOT, capture_output=True, text=True)
        if r.returncode:
            raise AssertionError(r.stdout + r.stderr)

    def test_a_browser_follows_every_link(self):
        site = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, site)
        shutil.copytree(ROOT / "build" / "site", site, dirs_exist_ok=True)
        (site / "crawl.html").write_text(CRAWLER)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not browser and sys.platform == "darwin":
            self.skipTest("no Chromium on this Mac")
        self.assertIsNotNone(browser, "tools/setup.sh installs chromium for the tests")
        url = f"http://127.0.0.1:{server.server_address[1]}/crawl.html"
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={site}/profile", "--timeout=120000", "--virtual-time-budget=600000", "--dump-dom", url]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=180).stdout
        found = re.search(r'<pre id="report">(.*?)</pre>', dom, re.S)
        self.assertIsNotNone(found, dom[-2000:])
        report = json.loads(found[1])
        self.assertEqual(report["bad"], [])
        self.assertGreater(report["pages"], 20)

    def test_every_function_of_mk_is_there(self):
        sys.path.insert(0, str(ROOT / "tools"))
        self.addCleanup(sys.path.remove, str(ROOT / "tools"))
        import mk_examples
        import reference

        without = [n for n in reference.functions() if n not in mk_examples.SPMD and n not in mk_examples.THREADS]
        self.assertEqual(without, [], "functions of mk without an example in tools/mk_examples.py")
        text = (ROOT / "build" / "pages" / "reference" / "mk.md").read_text()
        self.assertEqual([n for n in reference.functions() if not re.search(rf"^### mk\.{n}\b", text, re.M)], [])


if __name__ == "__main__":
    unittest.main()
