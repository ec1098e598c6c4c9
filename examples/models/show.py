"""A progress bar, a chart as SVG, images as PNG: what the examples show, with nothing installed."""

import struct
import sys
import time
import zlib

import numpy as np


class Progress:
    """for item in Progress(items, total, "epoch"): ...; note(loss=...) shows numbers. One line that is
    written over; on anything but a terminal only the end."""

    def __init__(self, items, total, what):
        self.items, self.total, self.what, self.notes, self.drawn = items, total, what, {}, 0.0

    def __iter__(self):
        self.start = time.perf_counter()
        for i, item in enumerate(self.items):
            yield item
            now = time.perf_counter()
            if sys.stderr.isatty() and (now - self.drawn > 0.1 or i + 1 == self.total):
                self.drawn = now
                self.draw(i + 1, now)
        self.draw(self.total, time.perf_counter(), "\n")

    def note(self, **numbers):
        self.notes.update(numbers)

    def draw(self, done, now, end="\r"):
        full = int(24 * done / max(self.total, 1))
        notes = "  ".join(f"{k} {v:.4g}" for k, v in self.notes.items())
        sys.stderr.write(f"{self.what} [{'#' * full}{'.' * (24 - full)}] {done}/{self.total}  {now - self.start:.1f} s  {notes}   {end}")
        sys.stderr.flush()


COLOURS = ("#1f6fb4", "#d9541e", "#3c8c3c", "#8a4fb0")


def ticks(low, high, count=5):
    step = 10 ** np.floor(np.log10((high - low) / count))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= count)
    return np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step


def chart(path, title, curves, x="step", y="loss"):
    """Writes a line chart: curves is {name: values} or {name: (xs, values)}."""
    width, height, left, right, top, bottom = 720, 420, 64, 24, 44, 48
    lines = {
        n: (np.arange(len(c)), np.asarray(c, float)) if not isinstance(c, tuple) else tuple(np.asarray(v, float) for v in c)
        for n, c in curves.items()
    }
    every_x, every_y = np.concatenate([a for a, _ in lines.values()]), np.concatenate([b for _, b in lines.values()])
    x0, x1 = every_x.min(), max(every_x.max(), every_x.min() + 1e-9)
    y0, y1 = every_y.min(), every_y.max()
    pad = 0.05 * (y1 - y0) or 0.5
    y0, y1 = y0 - pad, y1 + pad
    at_x = lambda v: left + (v - x0) / (x1 - x0) * (width - left - right)  # noqa: E731
    at_y = lambda v: height - bottom - (v - y0) / (y1 - y0) * (height - top - bottom)  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
    ]
    out.append(f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="24" font-size="16">{title}</text>')
    for v in ticks(y0, y1):
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{at_y(v):.1f}" y2="{at_y(v):.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{left - 8}" y="{at_y(v) + 4:.1f}" text-anchor="end" fill="#555">{v:.4g}</text>')
    for v in ticks(x0, x1, 8):
        out.append(f'<text x="{at_x(v):.1f}" y="{height - bottom + 18}" text-anchor="middle" fill="#555">{v:.4g}</text>')
    out.append(f'<line x1="{left}" x2="{width - right}" y1="{height - bottom}" y2="{height - bottom}" stroke="#777"/>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">{x}</text>')
    out.append(f'<text x="16" y="{height / 2}" text-anchor="middle" transform="rotate(-90 16 {height / 2})">{y}</text>')
    for i, (name, (xs, ys)) in enumerate(lines.items()):
        points = " ".join(f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in zip(xs, ys))
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i % 4]}" stroke-width="1.8"/>')
        out.append(f'<text x="{width - right - 8}" y="{top + 6 + 18 * i}" text-anchor="end" fill="{COLOURS[i % 4]}">{name}</text>')
    out.append("</svg>")
    with open(path, "w") as f:
        f.write("\n".join(out))


def png(path, image, scale=1):
    """Writes an array (H, W) of numbers in [0, 1], white is 1, as a PNG."""
    image = np.clip(np.asarray(image, float), 0, 1).repeat(scale, 0).repeat(scale, 1)
    pixels = (image * 255 + 0.5).astype(np.uint8)
    body = b"".join(b"\x00" + row.tobytes() for row in pixels)

    def part(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 0, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(body, 9)) + part(b"IEND", b""))


def grid(images, columns, gap=1):
    """Images (N, H, W) side by side, as one array."""
    n, h, w = images.shape
    rows = -(-n // columns)
    out = np.ones((rows * (h + gap) + gap, columns * (w + gap) + gap))
    for i, image in enumerate(images):
        r, c = divmod(i, columns)
        out[gap + r * (h + gap) : gap + r * (h + gap) + h, gap + c * (w + gap) : gap + c * (w + gap) + w] = image
    return out
