"""Benchmarks against peers, in one run: `python -m bench` prints the table of docs/benchmarks.md. One module
per row."""
