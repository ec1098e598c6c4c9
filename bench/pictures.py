"""Pictures of what the runs left in build/bench: docs/pictures/*.svg and *.png, and the part of
docs/benchmarks.md that shows them. matplotlib is needed for this alone.

    ops-LEVEL     the ratio to the best peer of every operation: the middle of its rows, and their spread
    rows          the same of the other rows
    roof          operations a second against operations a byte, under the machine's limits
    start         cold and warm starts
    costs         a launch by its arguments, compiling by layers, recording by operations"""

import json
import os
import statistics
import sys

from .tools import ROOT, replace_part, results

FOLDER = os.path.join(ROOT, "docs", "pictures")
OURS, OTHER, LINE = "#1f6fb4", "#b0b0b0", "#c44e52"
STARTS = ("empty caches", "second process", "warm cache", "import ")


def load(name):
    path = results(name)
    if not os.path.exists(path):
        return None
    with open(path) as f:
        return json.load(f)


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "eas", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    import matplotlib.pyplot as plt

    return plt


def save(plt, figure, name):
    os.makedirs(FOLDER, exist_ok=True)
    figure.tight_layout()
    figure.savefig(os.path.join(FOLDER, name + ".svg"), metadata={"Date": None})
    figure.savefig(os.path.join(FOLDER, name + ".png"), dpi=120)
    plt.close(figure)
    return name


def ratios(plt, name, title, rows):
    """rows: [(label, low, middle, high)], drawn from the best to the worst; left of the line we are ahead."""
    rows = sorted(rows, key=lambda r: r[2])
    figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.155 * len(rows)))
    for y, (_, low, middle, high) in enumerate(rows):
        colour = OURS if middle <= 1 else LINE
        axes.plot([low, high], [y, y], color=colour, alpha=0.45, linewidth=2)
        axes.plot([middle], [y], "o", color=colour, markersize=3.5)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.axvline(1.2, color="black", linewidth=0.5, linestyle=":")
    axes.set_xscale("log")
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if min(r[1] for r in rows) * 0.7 <= t <= max(max(r[3] for r in rows) * 1.4, 2)]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [r[0] for r in rows], fontsize=6.5)
    axes.set_ylim(-1, len(rows))
    axes.grid(axis="x", alpha=0.25)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("time, as a multiple of the best peer's (left of 1: we are ahead)")
    return save(plt, figure, name)


def where(data):
    """The machine's name, and whether others used it."""
    how = ", CPU time of one thread" if data.get("busy") else f", load {data['load']:.0f} at the start" if data.get("load", 0) > 1 else ""
    return data["machine"] + how


def quartiles(values):
    v = sorted(values)
    return v[len(v) // 4], statistics.median(v), v[-1 - len(v) // 4]


def operations(plt, level):
    data = load(f"ops-{level}")
    if not data:
        return None
    groups = {}
    for r in data["rows"]:
        if r["ratio"]:
            groups.setdefault(r["op"], []).append(r["ratio"])
    rows = [(f"{op} ({len(v)})", *quartiles(v)) for op, v in groups.items()]
    title = f"every operation, {data['level']}: middle half of its rows (dtypes × sizes)\n{where(data)}"
    return ratios(plt, f"ops-{level}", title, rows) if rows else None


def middle_of(r):
    """A row's ratio between the quartiles of its rounds, where they were kept."""
    low, high = r.get("spread") or (r["ratio"], r["ratio"])
    return min(low, r["ratio"]), r["ratio"], max(high, r["ratio"])


def other_rows(plt):
    data = load("rows")
    rows = [r for r in data["rows"] if r["ratio"] and r["better"] == "less" and r["unit"] == "s" and r["goal"]] if data else []
    if not rows:
        return None
    return ratios(plt, "rows", f"kernels, starts, models\n{where(data)}", [(r["what"][:60], *middle_of(r)) for r in rows])


def roofline(plt):
    data = load("costs")
    if not data or not data["roof"]:
        return None
    peak, band = data["roof"]
    figure, axes = plt.subplots(figsize=(7, 4.2))
    x = [2**k for k in range(-4, 11)]
    axes.plot(x, [min(peak, band * i) / 1e9 for i in x], color="black", linewidth=1)
    names = []
    for i, (name, intensity, rate) in enumerate(sorted(data["points"], key=lambda p: p[1]), 1):
        axes.plot([intensity], [rate / 1e9], "o", color=OURS)
        axes.annotate(str(i), (intensity, rate / 1e9), textcoords="offset points", xytext=(0, -12), fontsize=7, ha="center")
        names.append(f"{i}  {name}, {rate / min(peak, band * intensity):.0%}")
    axes.text(0.98, 0.04, "\n".join(names), transform=axes.transAxes, fontsize=7, ha="right", va="bottom", linespacing=1.4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("floating-point operations a byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"kernels under the roof: {peak / 1e9:.0f} GFLOP/s, {band / 1e9:.1f} GB/s, {data['level']}\n{where(data)}", fontsize=9)
    axes.grid(alpha=0.25)
    return save(plt, figure, "roof")


def starts(plt):
    data = load("rows")
    rows = [r for r in data["rows"] if any(w in r["what"] for w in STARTS) and r["ours"] and r["unit"] == "s"] if data else []
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.55 * len(rows)))
    for y, r in enumerate(rows):
        last, above = 0, True
        for peer, t in sorted(r["peers"].items(), key=lambda p: p[1]):
            above = not above if t < 1.8 * last else True  # labels of neighbours stand above and below
            last = t
            axes.plot([t * 1e3], [y], "o", color=OTHER)
            axes.annotate(peer, (t * 1e3, y), textcoords="offset points", xytext=(0, 5 if above else -11), fontsize=6, ha="center")
        axes.plot([r["ours"] * 1e3], [y], "o", color=OURS)
        axes.annotate("eas", (r["ours"] * 1e3, y), textcoords="offset points", xytext=(0, 5), fontsize=7, ha="center", color=OURS)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [r["what"][:55] for r in rows], fontsize=7)
    axes.set_ylim(-0.7, len(rows) - 0.2)
    axes.set_xlabel("ms")
    axes.set_title(f"cold and warm starts\n{where(data)}", fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    return save(plt, figure, "start")


def costs(plt):
    data = load("costs")
    if not data:
        return None
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2))
    for a, (title, x, unit, scale, lines) in zip(
        axes,
        (
            ("cached launch", "arrays", "ns", 1e9, {"eas": data["launches"]}),
            ("compile, empty caches", "layers", "ms", 1e3, data["compiling"]),
            ("recording", "operations", "ns each", 1e9, {"eas": data["recording"]}),
        ),
    ):
        for name, line in lines.items():
            points = [(int(n), t * scale) for n, t in line.items() if t]
            if points:
                a.plot(*zip(*points), "o-", color=OURS if name == "eas" else OTHER, label=name, markersize=3)
        a.set_title(title, fontsize=9)
        a.set_xlabel(x)
        a.set_ylabel(unit)
        a.set_ylim(bottom=0)
        if max(map(int, next(iter(lines.values())))) > 30:
            a.set_xscale("log")
        if len(lines) > 1:
            a.legend(fontsize=7)
        a.grid(alpha=0.25)
    figure.suptitle(where(data), fontsize=8)
    return save(plt, figure, "costs")


CAPTIONS = {
    "ops": "Every operation against the best of NumPy, torch and JAX ({})",
    "rows": "Kernels, starts and models against their best peer",
    "roof": "Kernels under the machine's limits",
    "start": "Cold and warm starts",
    "costs": "Cost against size",
}


def main():
    plt = pyplot()
    levels = [n[4:-5] for n in sorted(os.listdir(os.path.dirname(results("x")))) if n.startswith("ops-") and not n.endswith("-part.json")]
    drawn = [operations(plt, level) for level in levels] + [other_rows(plt), roofline(plt), starts(plt), costs(plt)]
    drawn = [d for d in drawn if d]
    lines = []
    for name in drawn:
        head, _, rest = name.partition("-")
        lines += [f"![{CAPTIONS[head].format(rest)}](pictures/{name}.svg)", ""]
    if lines:
        replace_part("pictures", "\n".join(lines))
    print(f"pictures: {', '.join(drawn) or 'none yet'} in {os.path.relpath(FOLDER, ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
