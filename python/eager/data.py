"""Data: batches from arrays, shuffled by a counter, prefetched by a thread, cut by rank, resumable; and the
state of a training run in one file.

The order of an epoch is a function of (seed, epoch) alone, so a loader that is told where it was goes on with
the same batches, on any number of threads.
"""

import json
import os
import queue
import threading
import zipfile

import numpy as np

from eas._eas import EagerTensor, constant, eager_from_dlpack, tensor_ops, tree_flatten, tree_unflatten

from .core.pytree import tree_map

__all__ = ["DataLoader", "load_state", "load_train_state", "permutation", "save_state", "save_train_state"]


def permutation(n, seed=0, epoch=0):
    """0 .. n-1 in an order that only seed and epoch decide."""
    from .ops.creation import fold_in, key

    bits = tensor_ops["random_bits"](fold_in(key(seed), epoch), shape=(n,))
    return tensor_ops["argsort"](bits).numpy()


class DataLoader:
    """Batches of a tree of arrays (NumPy's, tensors, anything with the same first size). One iteration is one
    epoch; the next goes on with the next.

    shuffle: another order each epoch. drop_last: without a smaller batch at the end. rank, world_size: this
    process sees every world_size-th example, and all see equally many (the first ones are seen twice where it
    does not divide). transform: a function of a batch (a tree of NumPy arrays), called by the prefetching
    thread. prefetch: so many batches are made ahead; 0: none, no thread.
    """

    def __init__(self, arrays, batch_size, *, shuffle=False, seed=0, drop_last=False, rank=0, world_size=1, transform=None, prefetch=2):
        leaves, self._treedef = tree_flatten(arrays)
        if not leaves:
            raise ValueError("DataLoader: there are no arrays")
        self._arrays = [x.numpy() if isinstance(x, EagerTensor) else np.asarray(x) for x in leaves]
        sizes = [a.shape[0] if a.ndim else None for a in self._arrays]
        if None in sizes or len(set(sizes)) != 1:
            raise ValueError(f"DataLoader: arrays have one first size, got {', '.join(str(a.shape) for a in self._arrays)}")
        for what, v, low in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("prefetch", prefetch, 0)):
            if isinstance(v, bool) or not isinstance(v, int) or v < low:
                raise ValueError(f"DataLoader: {what} is an int of at least {low}, got {v!r}")
        if not 0 <= rank < world_size:
            raise ValueError(f"DataLoader: rank is in [0, {world_size}), got {rank}")
        self.size, self.batch_size, self.shuffle, self.seed, self.drop_last = sizes[0], batch_size, shuffle, int(seed), drop_last
        self.rank, self.world_size, self.transform, self.prefetch = rank, world_size, transform, prefetch
        self.epoch = self.batch = 0  # of the next batch

    @property
    def examples(self):
        """How many examples this rank sees in an epoch."""
        return -(-self.size // self.world_size)

    def __len__(self):
        return self.examples // self.batch_size if self.drop_last else -(-self.examples // self.batch_size)

    def order(self, epoch):
        """The numbers of the examples that this rank sees in an epoch, in order."""
        every = permutation(self.size, self.seed, epoch) if self.shuffle else np.arange(self.size)
        short = self.examples * self.world_size - self.size
        if short and self.size:
            every = np.concatenate([every, np.resize(every, short)])
        return every[self.rank :: self.world_size]

    def _make(self, order, batch):
        at = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        parts = tree_unflatten(self._treedef, [np.ascontiguousarray(a[at]) for a in self._arrays])
        if self.transform is not None:
            parts = self.transform(parts)
        return tree_map(_tensor, parts)

    def __iter__(self):
        epoch, count = self.epoch, len(self)
        order = self.order(epoch)
        if self.batch >= count:
            self.epoch, self.batch = epoch + 1, 0
            return
        if not self.prefetch:
            while self.epoch == epoch and self.batch < count:
                made = self._make(order, self.batch)
                self._advance(epoch, count)
                yield made
            return
        ahead = _Ahead(lambda b: self._make(order, b), range(self.batch, count), self.prefetch)
        try:
            for made in ahead:
                self._advance(epoch, count)
                yield made
        finally:
            ahead.close()

    def _advance(self, epoch, count):
        self.batch += 1
        if self.batch >= count:
            self.epoch, self.batch = epoch + 1, 0

    def state_dict(self):
        """The state of the loader: its place, and the options that decide the order. The next batch is the
        one after the last that was returned."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seed": self.seed,
            "size": self.size,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state):
        """Continues where state_dict was called. If data, batch size or number of ranks differ:
        ValueError."""
        mine = self.state_dict()
        other = [f"{k} was {state[k]} and is {mine[k]}" for k in ("size", "batch_size", "shuffle", "world_size") if state.get(k) != mine[k]]
        if other:
            raise ValueError(f"DataLoader.load_state_dict: it is another loader: {', '.join(other)}")
        self.epoch, self.batch, self.seed = int(state["epoch"]), int(state["batch"]), int(state["seed"])


def _tensor(x):
    if isinstance(x, EagerTensor):
        return x
    x = np.asarray(x)
    try:
        return eager_from_dlpack(x) if x.ndim and x.size and x.flags.writeable else constant(x)
    except (TypeError, ValueError, BufferError):
        return constant(x)


class _Ahead:
    """make(i) for each i, by a thread that makes `depth` items ahead. An exception of make is raised where
    its item would have come."""

    def __init__(self, make, items, depth):
        self.queue, self.stop = queue.Queue(depth), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(make, items), name="eager-data", daemon=True)
        self.thread.start()

    def _put(self, item):
        while not self.stop.is_set():
            try:
                return self.queue.put(item, timeout=0.05)
            except queue.Full:
                pass

    def _run(self, make, items):
        try:
            for i in items:
                if self.stop.is_set():
                    return
                self._put((make(i), None))
            self._put((None, StopIteration()))
        except BaseException as e:  # raised in the thread that takes the next item
            self._put((None, e))

    def __iter__(self):
        while True:
            item, error = self.queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item

    def close(self):
        self.stop.set()
        while self.thread.is_alive():
            try:
                self.queue.get_nowait()
            except queue.Empty:
                self.thread.join(0.01)


# ---- the state of a run, in one file ----
# A zip with the arrays as .npy and the structure as JSON. Nothing in it is executed when it is read.
def _pack(value, arrays):
    if isinstance(value, EagerTensor):
        name = str(value.dtype)
        data = value.detach()
        if name == "bf16":
            data = data.astype("float32")  # exact, and converted back when it is read
        arrays.append(np.asarray(data.numpy()))
        return {"tensor": len(arrays) - 1, "dtype": name}
    if isinstance(value, (np.ndarray, np.generic)):
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, dict):
        bad = [k for k in value if not isinstance(k, (str, int))]
        if bad:
            raise TypeError(f"save_state: names are texts or ints, got {bad[0]!r}")
        return {"dict": [[k, _pack(v, arrays)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(v, arrays) for v in value]}
    if value is None or isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    raise TypeError(f"save_state: tensors, arrays, numbers, texts, and lists and dicts of them are saved, got {type(value).__name__}")


def _unpack(row, arrays):
    kind, value = next(iter(row.items()))
    if kind == "tensor":
        return constant(arrays[value], row["dtype"])
    if kind == "array":
        return arrays[value]
    if kind == "dict":
        return {k: _unpack(v, arrays) for k, v in value}
    if kind in ("list", "tuple"):
        items = [_unpack(v, arrays) for v in value]
        return tuple(items) if kind == "tuple" else items
    return float.fromhex(value) if kind == "float" else value


def save_state(path, state):
    """Writes a tree of tensors, arrays, numbers and texts to a file, which appears as a whole or not at all.
    """
    arrays, path = [], os.fspath(path)
    structure = _pack(state, arrays)
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.part"
    try:
        with open(temporary, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.writestr("structure.json", json.dumps({"version": 1, "state": structure}))
            for i, a in enumerate(arrays):
                with z.open(f"{i}.npy", "w", force_zip64=True) as g:
                    np.lib.format.write_array(g, np.asarray(a), allow_pickle=False)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def load_state(path):
    """The tree that save_state wrote, with the same bits."""
    try:
        with zipfile.ZipFile(os.fspath(path)) as z:
            head = json.loads(z.read("structure.json"))
            arrays = []
            while f"{len(arrays)}.npy" in z.NameToInfo:
                with z.open(f"{len(arrays)}.npy") as g:
                    arrays.append(np.lib.format.read_array(g, allow_pickle=False))
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, ValueError) as e:
        raise ValueError(f"load_state: {path} was not written by save_state, or is damaged: {e}") from None
    if head.get("version") != 1:
        raise ValueError(f"load_state: {path} has version {head.get('version')}, and 1 is known")
    try:
        return _unpack(head["state"], arrays)
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as e:
        raise ValueError(f"load_state: {path} is damaged: {e!r}") from None


def save_train_state(path, *, model=None, optimizer=None, loader=None, **more):
    """Saves a training run: state_dict() of the model, the optimiser and the loader, and any further trees
    (keys, optimiser states, counters). Numbers drawn without a key go on as well."""
    from eas._eas import random_state

    state = {"random": random_state(), "more": more}
    for name, part in (("model", model), ("optimizer", optimizer), ("loader", loader)):
        if part is not None:
            state[name] = dict(part.state_dict())
    save_state(path, state)


def load_train_state(path, *, model=None, optimizer=None, loader=None):
    """Puts a saved run into a model, an optimiser and a loader that were made as before, and gives the
    further trees. Where one does not fit nothing is changed."""
    from eas._eas import random_set_state

    state = load_state(path)
    for name, part in (("model", model), ("optimizer", optimizer), ("loader", loader)):
        if part is not None and name not in state:
            raise ValueError(f"load_train_state: {path} was saved without a {name}")
    loaded = []  # each object with the state that it had before
    try:
        for name, part in (("model", model), ("optimizer", optimizer), ("loader", loader)):
            if part is not None:
                before = part.state_dict()
                part.load_state_dict(state[name])
                loaded.append((part, before))
    except Exception:
        for part, before in loaded:
            part.load_state_dict(before)
        raise
    random_set_state(state["random"])
    return state["more"]
