"""The Mandelbrot set, written to a PNG: `python -m examples.mandelbrot out.png`.

A program iterates z = z^2 + c for a block of pixels of one line at once. The pixels escape at different
times: those that have keep their z and count by mk.where, and the loop (mk.while_) ends as soon as mk.any
finds none left, or at the limit."""

import os
import struct
import sys
import tempfile
import zlib

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def mandelbrot(out, W, H, left, top, step, limit, BLOCK: eas.constexpr):
    col, line = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK), mk.program_id(1)
    cr, ci = left + step * mk.to_f32(col), mk.full(BLOCK, top - step * mk.to_f32(line))
    zr, zi = mk.var(mk.zeros(BLOCK)), mk.var(mk.zeros(BLOCK))
    count, n = mk.var(mk.zeros(BLOCK, mk.i32)), mk.var(0)
    with mk.while_(lambda: (n < limit) & mk.any(zr * zr + zi * zi <= 4.0)):
        inside = zr * zr + zi * zi <= 4.0
        r, i = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
        zr.set(mk.where(inside, r, zr))
        zi.set(mk.where(inside, i, zi))
        count += mk.to_i32(inside)
        n += 1
    mk.store(out, line * W + col, count, col < W)


def reference(w, h, left, top, step, limit):
    """The same in NumPy, on the whole picture."""
    x, y = np.meshgrid(np.arange(w, dtype=np.float32), np.arange(h, dtype=np.float32))
    c = (np.float32(left) + np.float32(step) * x) + 1j * (np.float32(top) - np.float32(step) * y)
    z, count = np.zeros_like(c), np.zeros(c.shape, np.int32)
    for _ in range(limit):
        inside = z.real**2 + z.imag**2 <= 4
        z = np.where(inside, z * z + c, z)
        count += inside
    return count


def on_torch(limit):
    def f(torch, cr, ci):
        zr, zi, count = torch.zeros_like(cr), torch.zeros_like(cr), torch.zeros(cr.shape, dtype=torch.int32)
        for _ in range(limit):
            inside = zr * zr + zi * zi <= 4
            zr, zi = torch.where(inside, zr * zr - zi * zi + cr, zr), torch.where(inside, 2 * zr * zi + ci, zi)
            count += inside
        return count

    return f


def on_jax(limit):
    def f(jnp, cr, ci):
        import jax

        def step(_, state):
            zr, zi, count = state
            inside = zr * zr + zi * zi <= 4
            return jnp.where(inside, zr * zr - zi * zi + cr, zr), jnp.where(inside, 2 * zr * zi + ci, zi), count + inside

        zero = jnp.zeros_like(cr)
        return jax.lax.fori_loop(0, limit, step, (zero, zero, zero.astype(jnp.int32)))[2]

    return f


def png(path, pixels):
    """Writes an (h, w, 3) array of bytes: a signature, then chunks of length, name, data and checksum."""
    h, w, _ = pixels.shape

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels, np.uint8))  # 0: no filter
    header = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b""))


def colours(count, limit):
    t = np.where(count == limit, 0, count / limit)[..., None] ** 0.4
    return (255 * np.clip(np.concatenate([1.5 * t, t**1.5, 0.2 * (t > 0) + t], -1), 0, 1)).astype(np.uint8)


def main(path=None, w=None, limit=None):
    w, limit = w or size(960, 48), limit or size(200, 30)
    h = w * 2 // 3
    view = dict(left=-2.2, top=1.1, step=3.3 / w)
    out = np.zeros((h, w), np.int32)
    took = ms(lambda: mandelbrot(out, w, h, limit=limit, BLOCK=64, **view), 1)
    small = np.zeros((32, 48), np.int32)
    mandelbrot(small, 48, 32, -2.2, 1.1, 3.3 / 48, 50, BLOCK=64)
    with np.errstate(all="ignore"):
        off = small != reference(48, 32, -2.2, 1.1, 3.3 / 48, 50)
    assert off.mean() < 0.01, f"{off.sum()} pixels differ from NumPy's"  # rounding may tip a pixel on the edge
    cr, ci = np.meshgrid(np.float32(view["left"] + view["step"] * np.arange(w)), np.float32(view["top"] - view["step"] * np.arange(h)))
    others = peers(cr, ci, torch=on_torch(limit), jax=on_jax(limit))
    if path is None:
        fd, path = tempfile.mkstemp(suffix=".png", prefix="mandelbrot-")
        os.close(fd)
    png(path, colours(out, limit))
    print(f"mandelbrot {w} x {h}, up to {limit} steps: {took:.1f} ms{others}; {os.path.getsize(path)} bytes in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
