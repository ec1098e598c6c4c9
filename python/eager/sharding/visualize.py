"""Pictures of which device holds which part of a tensor."""

import itertools
import math
from html import escape

from eas._eas import EagerTensor

from .spec import PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = ["ShardingPicture", "visualize_sharding"]

# light enough for black text, different for neighbours
_COLOURS = ["#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fc9272", "#fee391", "#c7e9c0", "#fcc5c0", "#bdbdbd", "#c6dbef", "#d4b9da", "#e5c494"]
_MOST = 4096


def _ranges(numbers):
    """0-3, 8: numbers that follow one another as a range."""
    runs = []
    for k in sorted(numbers):
        if runs and runs[-1][1] == k - 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return ", ".join(f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def _short(text, room):
    return text if len(text) <= room else text[: max(room - 3, 1)] + "..."


class ShardingPicture:
    """Who holds what of a tensor: str() draws it in text, .svg in SVG (notebooks show that), save(path)
    writes a file. `holders` has the devices of each part, by its place along each dim."""

    def __init__(self, spec, shape=None):
        if spec.mesh.size > _MOST:
            raise ValueError(f"visualize_sharding: a mesh of {spec.mesh.size} devices is too large to draw; at most {_MOST}")
        self.spec, self.shape = spec, None if shape is None else tuple(int(n) for n in shape)
        mesh = spec.mesh
        self.parts = [math.prod(mesh.get_axis_size(a) for a in d.axes) for d in spec.dim_specs]
        self.holders = {}
        for k, at in enumerate(itertools.product(*map(range, mesh.shape))):
            place = dict(zip(mesh.axis_names, at))
            key = []
            for d in spec.dim_specs:
                i = 0
                for a in d.axes:
                    i = i * mesh.get_axis_size(a) + place[a]
                key.append(i)
            self.holders.setdefault(tuple(key), []).append(k)

    # ---- the content of both forms ----
    def _layout(self):
        """Dims that are drawn downwards and to the right, and those that are cut besides: a panel for each of
        their parts."""
        cut = [d for d, n in enumerate(self.parts) if n > 1]
        rank = len(self.parts)
        shown = cut[-2:] if len(cut) > 2 else list(cut)
        for d in reversed(range(rank)):
            if len(shown) < min(2, rank) and d not in shown:
                shown.append(d)
        shown.sort()
        return shown, [d for d in cut if d not in shown]

    def _dim_text(self, d):
        axes = self.spec.dim_specs[d].axes
        size = "" if self.shape is None else f" of size {self.shape[d]}"
        return f"dim {d}{size}" + (f" cut along {', '.join(repr(a) for a in axes)}" if axes else "")

    def _span(self, d, i):
        """The elements of part i of dim d."""
        if self.shape is None:
            return f"part {i}" if self.parts[d] > 1 else "all"
        step = -(-self.shape[d] // self.parts[d])
        first, last = min(i * step, self.shape[d]), min((i + 1) * step, self.shape[d])
        return f"{first}:{last}"

    def _title(self):
        entries = ", ".join("None" if not d.axes else repr(d.axes[0]) if len(d.axes) == 1 else repr(tuple(d.axes)) for d in self.spec.dim_specs)
        mesh = " x ".join(f"{n} {a!r}" for a, n in zip(self.spec.mesh.axis_names, self.spec.mesh.shape))
        shape = "" if self.shape is None else f"{list(self.shape)} "
        partial = f", partial over {', '.join(map(repr, sorted(self.spec.partial_sum_axes)))}" if self.spec.partial_sum_axes else ""
        return f"{shape}P({entries}){partial} on mesh {self.spec.mesh.name!r}: {mesh}"

    def _panels(self):
        """(caption, rows of cells) each; a cell is the list of its devices."""
        shown, rest = self._layout()
        rows = range(self.parts[shown[0]]) if len(shown) == 2 else range(1)
        columns = range(self.parts[shown[-1]]) if shown else range(1)
        for at in itertools.product(*[range(self.parts[d]) for d in rest]):
            where = dict(zip(rest, at))
            caption = ", ".join(f"dim {d}: {self._span(d, i)}" for d, i in where.items())
            cells = []
            for r in rows:
                line = []
                for c in columns:
                    key = dict(where)
                    if len(shown) == 2:
                        key[shown[0]] = r
                    if shown:
                        key[shown[-1]] = c
                    line.append(self.holders[tuple(key.get(d, 0) for d in range(len(self.parts)))])
                cells.append(line)
            yield caption, cells

    # ---- text ----
    def __str__(self):
        shown, _ = self._layout()
        lines = [self._title()]
        for caption, cells in self._panels():
            if caption:
                lines.append(caption)
            texts = [[_ranges(c) for c in row] for row in cells]
            side = [self._span(shown[0], r) for r in range(len(cells))] if len(shown) == 2 else [""] * len(cells)
            heads = [self._span(shown[-1], c) for c in range(len(cells[0]))] if shown else [""]
            width = [max(len(heads[c]), *(len(row[c]) for row in texts)) for c in range(len(heads))]
            margin = max(map(len, side))
            bar = " " * margin + " +" + "+".join("-" * (w + 2) for w in width) + "+"
            lines += [" " * (margin + 1) + "".join(f"  {h:^{w}}" for h, w in zip(heads, width)).rstrip(), bar]
            for s, row in zip(side, texts):
                lines += [f"{s:>{margin}} |" + "|".join(f" {t:^{w}} " for t, w in zip(row, width)) + "|", bar]
        lines += [f"{where}: {self._dim_text(d)}" for where, d in zip(("down", "right") if len(shown) == 2 else ("right",), shown)]
        lines.append("in the cells: the devices that hold the part" + (", and still have to sum it" if self.spec.partial_sum_axes else ""))
        return "\n".join(lines)

    __repr__ = __str__

    # ---- SVG ----
    @property
    def svg(self):
        shown, _ = self._layout()
        panels = list(self._panels())
        rows, columns = len(panels[0][1]), len(panels[0][1][0])
        longest = max(len(_ranges(c)) for _, cells in panels for row in cells for c in row)
        cell_w = max(54, min(240, 8 * min(longest, 28) + 16)) if columns <= 16 else 30
        cell_w = max(cell_w, 216 // columns)
        cell_h = max(44, 88 // rows) if rows <= 16 else 22
        left, top, gap = 96, 60, 44
        across = max(1, min(len(panels), 4))
        width = max(left + across * (columns * cell_w + gap) + 10, 8 * len(self._title()) + 24)
        height = top + -(-len(panels) // across) * (rows * cell_h + gap) + 18
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(self._title())}</text>',
        ]
        colours = {}
        for k, (caption, cells) in enumerate(panels):
            x0, y0 = left + k % across * (columns * cell_w + gap), top + k // across * (rows * cell_h + gap)
            if caption:
                out.append(f'<text x="{x0}" y="{y0 - 20}" fill="#333">{escape(caption)}</text>')
            for c in range(columns if shown and columns <= 16 else 0):
                out.append(f'<text x="{x0 + (c + 0.5) * cell_w}" y="{y0 - 5}" text-anchor="middle" font-size="11" fill="#555">{escape(self._span(shown[-1], c))}</text>')
            for r, row in enumerate(cells):
                if len(shown) == 2 and k % across == 0 and rows <= 32:
                    out.append(f'<text x="{x0 - 8}" y="{y0 + (r + 0.5) * cell_h + 4}" text-anchor="end" font-size="11" fill="#555">{escape(self._span(shown[0], r))}</text>')
                for c, devices in enumerate(row):
                    colour = colours.setdefault(tuple(devices), _COLOURS[len(colours) % len(_COLOURS)])
                    text = _short(_ranges(devices), max(3, (cell_w - 8) // 8))
                    out.append(f'<rect x="{x0 + c * cell_w}" y="{y0 + r * cell_h}" width="{cell_w}" height="{cell_h}" fill="{colour}" stroke="#333"/>')
                    out.append(f'<text x="{x0 + (c + 0.5) * cell_w}" y="{y0 + (r + 0.5) * cell_h + 5}" text-anchor="middle">{text}</text>')
        where = ("down", "right") if len(shown) == 2 else ("right",)
        words = "; ".join(f"{w}: {self._dim_text(d)}" for w, d in zip(where, shown))
        out.append(f'<text x="12" y="{height - 26}" fill="#333">{escape(words)}</text>')
        more = ", and still have to sum it" if self.spec.partial_sum_axes else ""
        out.append(f'<text x="12" y="{height - 9}" fill="#333">in the cells: the devices that hold the part{more}</text>')
        return "\n".join([*out, "</svg>", ""])

    def _repr_svg_(self):
        return self.svg

    def save(self, path):
        """Writes the SVG."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.svg)


def visualize_sharding(x, shape=None, *, mesh=None):
    """Who holds what of a tensor, or of anything with this sharding: print() draws it in text, .svg is a
    picture, save(path) writes one.

    x: a tensor; a ShardingSpec; or a PartitionSpec, with mesh. shape: of the tensor, where x does not know
    it; without one parts are numbered."""
    if isinstance(x, EagerTensor):
        spec = x.sharding
        shape = tuple(int(n) for n in x.physical_shape)
        if spec is None:
            if mesh is None:
                raise ValueError("visualize_sharding: the tensor lies on no mesh; shard it, or say which mesh it is whole on: mesh=")
            spec = create_replicated_spec(mesh, len(shape))
    elif isinstance(x, ShardingSpec):
        spec = x
    elif isinstance(x, PartitionSpec):
        if mesh is None:
            raise ValueError("visualize_sharding: a PartitionSpec names axes of a mesh; pass mesh=")
        spec = x.to_spec(mesh, len(x) if shape is None else len(shape))
    else:
        raise TypeError(f"visualize_sharding: a tensor, a ShardingSpec or a PartitionSpec is wanted, got {type(x).__name__}")
    if shape is not None and len(shape) != len(spec.dim_specs):
        raise ValueError(f"visualize_sharding: a spec of {len(spec.dim_specs)} dims for a shape of {len(shape)}")
    return ShardingPicture(spec, shape)
