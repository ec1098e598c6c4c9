"""Timings that `@eas.autotune` keeps on disk, taken to other machines of the same kind:
`eas.tuning.export(path)` and `import_(path)`."""

from . import _eas

__all__ = ["export", "import_"]


def export(path):
    """Writes all timings of this machine to a file; how many."""
    text = "".join(sorted(_eas.tune_export().splitlines(keepends=True)))
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return text.count("\n")


def import_(path):
    """Takes timings from a file that `export` wrote; how many. They count where device, library and kernel
    are the same."""
    with open(path, encoding="utf-8") as f:
        return _eas.tune_import(f.read())
