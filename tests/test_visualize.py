"""Drawings and texts of what will run: arrows around boxes, names, numbers where they are used, results,
loops; every name that is used is defined."""

import contextlib
import io
import os
import re
import tempfile
import unittest
import xml.etree.ElementTree as ET

import eager
from eager import Tensor

NS = "{http://www.w3.org/2000/svg}"


def model(x, params):
    h = (x @ params["w1"] + params["b1"]).relu()
    h = h * 0.5 + h.mean(axis=-1, keepdims=True)
    return eager.softmax(h @ params["w2"]), (h * h).sum()


def loop(x, n):
    _, v = eager.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, eager.sin(s[1] * 1.5) + x), (0, x))
    return eager.cond(v.sum() > 0, lambda: v @ v.T, lambda: x @ x.T)


def data():
    return Tensor.ones((8, 16)).realize(), {"w1": Tensor.ones((16, 32)).realize(), "b1": Tensor.ones((32,)).realize(), "w2": Tensor.ones((32, 4)).realize()}


def texts(svg):
    return [t.text or "" for t in ET.fromstring(svg).iter(NS + "text")]


def trace(*args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        eager.trace(*args)
    return out.getvalue()


def boxes_and_edges(root):
    """Of the drawing itself, not of what is drawn inside boxes."""
    boxes = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in root.findall(NS + "rect") if r.get("class") not in (None, "inside")]
    return boxes, [p.get("d") for p in root.findall(NS + "path") if p.get("class") == "edge"]


def points(d, steps=24):
    """Points along a path of M, V and one C."""
    n = [float(v) for v in re.findall(r"-?\d+(?:\.\d+)?", d)]
    if "V" in d:
        return [(n[0], n[1] + (n[2] - n[1]) * i / steps) for i in range(steps + 1)]
    x0, y0, x1, y1, x2, y2, x3, y3 = n
    out = []
    for i in range(steps + 1):
        t = i / steps
        a, b, c, e = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
        out.append((a * x0 + b * x1 + c * x2 + e * x3, a * y0 + b * y1 + c * y2 + e * y3))
    return out


class Drawings(unittest.TestCase):
    def drawings(self):
        x, params = data()
        n = Tensor.constant(3)
        y = model(x, params)
        z = x
        for i in range(6):  # arrows over many layers
            z = eager.sin(z) + x * float(i + 2) + z
        for fused in (True, False):
            yield eager.visualize(list(y), fused=fused).svg
            yield eager.visualize(model, x, params, fused=fused).svg
            yield eager.visualize(loop, x, n, fused=fused).svg
            yield eager.visualize(z, fused=fused).svg

    def test_edges_have_arrows_and_go_around_boxes(self):
        for svg in self.drawings():
            root = ET.fromstring(svg)
            boxes, edges = boxes_and_edges(root)
            self.assertIn("marker-end", svg)
            for a in boxes:
                for b in boxes:
                    if a is not b:
                        self.assertFalse(a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3], "boxes overlap")
            for d in edges:
                for px, py in points(d):
                    for x, y, w, h in boxes:
                        self.assertFalse(x + 2 < px < x + w - 2 and y + 2 < py < y + h - 2, f"{d} goes through a box")

    def test_names_numbers_and_results(self):
        x, params = data()
        y, z = model(x, params)
        for fused in (True, False):
            for svg in (eager.visualize([y, z], fused=fused).svg, eager.visualize(model, x, params, fused=fused).svg):
                words = texts(svg)
                for name in ("x", "params['w1']", "params['b1']", "params['w2']"):
                    self.assertIn(name, words)
                self.assertTrue(any("0.5" in t for t in words))
                self.assertNotIn("0.5", words, "a number has no box of its own")
                self.assertEqual(svg.count('class="result"'), 2)

    def test_loops_are_drawn(self):
        x, _ = data()
        for fused in (True, False):
            words = texts(eager.visualize(loop, x, Tensor.constant(3), fused=fused).svg)
            self.assertTrue({"a trip", "if so", "if not"} <= set(words))
            self.assertTrue(any("sin" in t for t in words))

    def test_files(self):
        y = Tensor.ones((2,)) + 1
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.svg")
            eager.visualize(y, path)
            with open(path, encoding="utf-8") as f:
                self.assertIn("<svg", f.read())
            eager.visualize(lambda v: v * 2, Tensor.ones((2,)), path=os.path.join(folder, "b.svg"))
            png = os.path.join(folder, "a.png")
            try:
                import cairosvg  # noqa: F401
            except ImportError:
                with self.assertRaisesRegex(RuntimeError, "pip install cairosvg"):
                    eager.visualize(y, png)
            else:
                eager.visualize(y, png)
                with open(png, "rb") as f:
                    self.assertEqual(f.read(4), b"\x89PNG")
            with self.assertRaisesRegex(ValueError, "should end in"):
                eager.visualize(y, os.path.join(folder, "a.txt"))
        with self.assertRaises(TypeError):
            eager.visualize(3)


class Texts(unittest.TestCase):
    def test_every_name_is_defined(self):
        x, params = data()
        shared = (x * 2 + 1).relu()
        several = [eager.sin(shared) @ params["w1"], shared.sum(axis=0), eager.concatenate([shared, x])]
        for text in (trace(model, x, params), trace(loop, x, Tensor.constant(3)), trace(several), eager.compile(model).__class__ and trace(list(model(x, params)))):
            scopes = [set()]
            for line in text.splitlines():
                m = re.match(r"( *)(\S+) = \S+(.*) : ", line)
                if not m:
                    if line.strip() in ("a trip:", "if so:", "if not:"):
                        scopes = [*scopes[:1], set()]
                    continue
                if len(m[1]) <= 4:
                    scopes = scopes[:1]
                scopes[-1].add(m[2])
                for used in re.findall(r"%\d+", m[3]):
                    self.assertIn(used, scopes[-1], f"{line!r} in\n{text}")

    def test_shapes_and_dtypes(self):
        x, params = data()
        text = trace(model, x, params)
        self.assertIn("f32(8, 16)", text)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            eager.print_trace_graph([x.trace() * 2])
        self.assertIn("f32(8, 16)", out.getvalue())


if __name__ == "__main__":
    unittest.main()
