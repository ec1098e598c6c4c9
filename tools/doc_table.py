"""A table of the docs that is made from a table of the sources: written, or with --check compared."""

import sys


def write(doc, begin, end, table, tool):
    """Puts `table` between the marks of the file `doc`; the exit code: 1 if --check finds another one there.
    """
    name, old = f"{doc.parent.name}/{doc.name}", doc.read_text(encoding="utf-8")
    head, rest = old.split(begin)
    new = head + begin + "\n" + table + "\n" + end + rest.split(end)[1]
    if new == old:
        print(f"{name} is current")
        return 0
    if "--check" in sys.argv:
        print(f"{name} is out of date: run tools/{tool}")
        return 1
    doc.write_text(new, encoding="utf-8")
    print(f"{name}: table written")
    return 0
