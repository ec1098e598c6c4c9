"""Recurrent networks: RNN, LSTM, GRU, in layers and directions. Time is a scan; the products with the input
are one product for all steps."""

import math

from eas._eas import tensor_ops as _ops

from ..ops.control_flow import scan
from ..ops.creation import uniform, zeros
from . import functional as F
from .functional.common import shape_text, tensor
from .module import Module, Parameter

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]


def _tanh_cell(act):
    def cell(x, state, wh, bh):
        (h,) = state
        z = x + h @ wh
        return (act(z if bh is None else z + bh),)

    return cell


def _parts(z, n):
    size = int(z.shape[-1]) // n
    return [z[..., i * size : (i + 1) * size] for i in range(n)]


def _lstm_cell(x, state, wh, bh):
    h, c = state
    z = x + h @ wh
    i, f, g, o = _parts(z if bh is None else z + bh, 4)
    c = _ops["sigmoid"](f) * c + _ops["sigmoid"](i) * _ops["tanh"](g)
    return _ops["sigmoid"](o) * _ops["tanh"](c), c


def _gru_cell(x, state, wh, bh):
    (h,) = state
    z = h @ wh
    xr, xz, xn = _parts(x, 3)
    hr, hz, hn = _parts(z if bh is None else z + bh, 3)
    r, u = _ops["sigmoid"](xr + hr), _ops["sigmoid"](xz + hz)
    n = _ops["tanh"](xn + r * hn)
    return ((1.0 - u) * n + u * h,)


class _Recurrent(Module):
    _gates, _states = 1, 1

    def __init__(self, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, *, dtype="float32"):
        super().__init__()
        for what, v in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if isinstance(v, bool) or not isinstance(v, int) or v < 1:
                raise ValueError(f"{type(self).__name__}: {what} is an int above 0, got {v!r}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{type(self).__name__}: dropout is a probability in [0, 1], got {dropout!r}")
        self.input_size, self.hidden_size, self.num_layers, self.batch_first = input_size, hidden_size, num_layers, batch_first
        self.dropout, self.bidirectional, self.has_bias = dropout, bidirectional, bias
        bound = 1.0 / math.sqrt(hidden_size)
        for name, shape in self._shapes():
            setattr(self, name, Parameter(uniform(shape, -bound, bound, dtype=dtype).realize()))

    def _suffixes(self):
        return [f"l{k}{d}" for k in range(self.num_layers) for d in (("", "_reverse") if self.bidirectional else ("",))]

    def _shapes(self):
        wide = self._gates * self.hidden_size
        for s in self._suffixes():
            size = self.input_size if s.startswith("l0") else self.hidden_size * (2 if self.bidirectional else 1)
            yield f"weight_ih_{s}", (size, wide)
            yield f"weight_hh_{s}", (self.hidden_size, wide)
            if self.has_bias:
                yield f"bias_ih_{s}", (wide,)
                yield f"bias_hh_{s}", (wide,)

    def _cell(self):
        raise NotImplementedError

    def _direction(self, xs, suffix, state, reverse):
        w, b = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"bias_ih_{suffix}") if self.has_bias else None
        wh, bh = getattr(self, f"weight_hh_{suffix}"), getattr(self, f"bias_hh_{suffix}") if self.has_bias else None
        cell = self._cell()

        def step(carry, x):
            new = cell(x, carry, wh, bh)
            return tuple(new), new[0]

        last, out = scan(step, state, F.linear(xs, w, b), reverse=reverse)
        return out, last

    def _start(self, x, given):
        n, layers = x.shape[1], len(self._suffixes())
        if given is None:
            z = zeros((n, self.hidden_size), dtype=x.dtype)
            return [(z,) * self._states for _ in range(layers)]
        given = tuple(given) if self._states > 1 else (given,)
        want = (layers, int(n), self.hidden_size)
        if len(given) != self._states or any(tuple(int(d) for d in g.shape) != want for g in given):
            raise ValueError(f"{type(self).__name__}: the state is {self._states} of {want}, got {', '.join(shape_text(g) for g in given)}")
        return [tuple(g[i] for g in given) for i in range(layers)]

    def forward(self, x, state=None):
        """x (L, N, input_size) ((N, L, input_size) with batch_first; without N: one example). Gives (what the
        last layer gives at each step, the last state); states are (layers * directions, N, hidden_size)."""
        x = tensor(x)
        single = len(x.shape) == 2
        if len(x.shape) not in (2, 3) or int(x.shape[-1]) != self.input_size:
            raise ValueError(f"{type(self).__name__}: x is (L, N, {self.input_size}) or (L, {self.input_size}), got {shape_text(x)}")
        x = _ops["unsqueeze"](x, 1) if single else _ops["swap_axes"](x, 0, 1) if self.batch_first else x
        if single and state is not None:
            state = tuple(_ops["unsqueeze"](s, 1) for s in state) if self._states > 1 else _ops["unsqueeze"](state, 1)
        states, last, suffixes = self._start(x, state), [], self._suffixes()
        ways = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outs = []
            for way in range(ways):
                i = layer * ways + way
                y, end = self._direction(x, suffixes[i], states[i], way == 1)
                outs.append(y)
                last.append(end)
            x = outs[0] if ways == 1 else _ops["concatenate"](outs, axis=-1)
        ends = tuple(_ops["stack"]([e[k] for e in last], axis=0) for k in range(self._states))
        if single:
            x, ends = _ops["squeeze"](x, 1), tuple(_ops["squeeze"](e, 1) for e in ends)
        elif self.batch_first:
            x = _ops["swap_axes"](x, 0, 1)
        return x, ends if self._states > 1 else ends[0]

    def extra_repr(self):
        s = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (("num_layers", 1), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)):
            s += f", {name}={getattr(self, name)}" if getattr(self, name) != usual else ""
        return s


class RNN(_Recurrent):
    """h' = act(x @ W_ih + b_ih + h @ W_hh + b_hh)."""

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        nonlinearity="tanh",
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        *,
        dtype="float32",
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f'RNN: nonlinearity is "tanh" or "relu", got {nonlinearity!r}')
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype)
        self.nonlinearity = nonlinearity

    def _cell(self):
        return _tanh_cell(_ops[self.nonlinearity])


class LSTM(_Recurrent):
    """Long short-term memory; gates in the order input, forget, cell, output. The state is (h, c)."""

    _gates, _states = 4, 2

    def _cell(self):
        return _lstm_cell


class GRU(_Recurrent):
    """Gated recurrent unit; gates in the order reset, update, new."""

    _gates = 3

    def _cell(self):
        return _gru_cell


class _Cell(Module):
    """One step of the network of the same name: (x, state) -> state."""

    _gates, _states = 1, 1

    def __init__(self, input_size, hidden_size, bias=True, *, dtype="float32"):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        bound = 1.0 / math.sqrt(hidden_size)
        make = lambda shape: Parameter(uniform(shape, -bound, bound, dtype=dtype).realize())  # noqa: E731
        self.weight_ih, self.weight_hh = make((input_size, self._gates * hidden_size)), make((hidden_size, self._gates * hidden_size))
        self.bias_ih, self.bias_hh = (make((self._gates * hidden_size,)), make((self._gates * hidden_size,))) if bias else (None, None)

    def forward(self, x, state=None):
        x = tensor(x)
        if state is None:
            state = (zeros((*x.shape[:-1], self.hidden_size), dtype=x.dtype),) * self._states
        elif self._states == 1:
            state = (state,)
        new = tuple(type(self)._f(F.linear(x, self.weight_ih, self.bias_ih), state, self.weight_hh, self.bias_hh))
        return new if self._states > 1 else new[0]

    def extra_repr(self):
        return f"{self.input_size}, {self.hidden_size}"


class RNNCell(_Cell):
    """h' = tanh(x @ W_ih + b_ih + h @ W_hh + b_hh)."""

    _f = staticmethod(_tanh_cell(_ops["tanh"]))


class LSTMCell(_Cell):
    """One step of an LSTM; the state is (h, c)."""

    _gates, _states = 4, 2
    _f = staticmethod(_lstm_cell)


class GRUCell(_Cell):
    """One step of a GRU."""

    _gates = 3
    _f = staticmethod(_gru_cell)
