"""The parallelism people use, a file each. Every one runs as it is, with four devices that are threads of one
process:

    python examples/parallel/data.py

and with a process for each device, which may be on different machines:

    mpirun -n 4 python examples/parallel/data.py

Each compares its results with the same computation on whole tensors, and the bytes that were sent with the
textbook's count."""

import numpy as np

import eager
from eager import Tensor
from eager import distributed as dist

DEVICES = 4


def devices():
    """How many: those of the job, or four threads."""
    return dist.size() if dist.size() > 1 else DEVICES


def normal(*shape, seed=0, scale=1.0):
    """The same numbers in every process."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def put(tree, mesh, specs):
    """A tree of arrays as sharded tensors; specs: the same tree of PartitionSpecs, or one for all."""
    if isinstance(tree, dict):
        return {k: put(v, mesh, specs[k] if isinstance(specs, dict) else specs) for k, v in tree.items()}
    return Tensor.constant(tree).shard(mesh, specs)


def whole(tree):
    return {k: whole(v) for k, v in tree.items()} if isinstance(tree, dict) else Tensor.constant(tree)


def everywhere(n):
    """A number of each process, summed."""
    return int(dist.all_reduce(np.array([n], np.int64))[0]) if dist.size() > 1 else int(n)


def check(name, fn, args, reference, textbook, tolerance=2e-5, terms=()):
    """Runs fn(*args) and compares with the reference's results and with the textbook's bytes; terms: how
    these come about. One row of a table is printed by the first process."""
    results = fn(*args)
    told = eager.explain_sharding(results)
    before = eager.comm_stats()["bytes"]
    eager.realize_all(results)
    sent = everywhere(eager.comm_stats()["bytes"] - before)
    worst = 0.0
    for got, want in zip(eager.tree_leaves(results), eager.tree_leaves(reference), strict=True):
        got, want = np.asarray(got.gather() if got.is_sharded else got), np.asarray(want)
        worst = max(worst, float(np.max(np.abs(got - want)) / (np.max(np.abs(want)) + 1e-30)))
    row = {"name": name, "error": worst, "sent": sent, "told": told.total_bytes, "textbook": textbook}
    if dist.rank() == 0:
        print(f"{name:34} {devices()} devices   error {worst:.1e}   sent {sent:>10} bytes   explain_sharding {told.total_bytes:>10}   textbook {textbook:>10}")
        for what, n in terms:
            print(f"    {n:>10}  {what}")
    if not (sent == textbook == told.total_bytes):
        raise AssertionError(f"{name}: {sent} bytes were sent, {told.total_bytes} predicted, {textbook} in the textbook\n{told}")
    if worst > tolerance:
        raise AssertionError(f"{name}: differs from the unsharded run by {worst:.1e}")
    return row
