"""await t: evaluation in a thread of ours, so that the event loop goes on."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

__all__ = ["wait"]

_pools = {}  # by process: threads do not survive a fork


def _pool():
    pid = os.getpid()
    if pid not in _pools:
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(max_workers=4, thread_name_prefix="eager-await")
    return _pools[pid]


def wait(t):
    """The iterator that `await t` goes through; None where no loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop.run_in_executor(_pool(), t.realize).__await__()
