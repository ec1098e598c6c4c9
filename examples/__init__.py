"""Run one with `python -m examples.add`."""
