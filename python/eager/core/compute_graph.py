"""The graph as users see it. Nodes hold each other, so there is no list of pending operations: a
result that no tensor refers to is freed."""

from contextvars import ContextVar

from eas._eas import eager_stats, realize_all

__all__ = ["GRAPH", "ComputeGraph"]


class _Context:
    """The state of one context."""

    def __init__(self):
        self.epoch = 0


class ComputeGraph:
    """One object for the whole process; its epoch and context belong to the running context (contextvars), so
    threads and asyncio tasks do not disturb each other."""

    def __init__(self):
        self._var = ContextVar("eager_graph")

    @property
    def context(self):
        try:
            return self._var.get()
        except LookupError:
            c = _Context()
            self._var.set(c)
            return c

    @property
    def epoch(self):
        return self.context.epoch

    def _reset(self, context, epoch):
        """Starts anew: the context's epoch is set; tensors that are still held can be evaluated as before."""
        if not isinstance(context, _Context):
            raise TypeError(f"GRAPH._reset(GRAPH.context, epoch): a context of the graph is wanted, got {type(context).__name__}")
        fresh = _Context()
        fresh.epoch = int(epoch)
        self._var.set(fresh)

    def evaluate(self, *tensors):
        """Computes these in one program and counts the epoch up."""
        realize_all(*tensors)
        self.context.epoch += 1

    @property
    def stats(self):
        """Counters of the process: programs, program_hits, kernels, steps, live_nodes, pack_bytes, pack_hits.
        """
        return eager_stats()

    def __repr__(self):
        return f"ComputeGraph(epoch={self.epoch})"


GRAPH = ComputeGraph()
