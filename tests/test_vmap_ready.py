"""What vmap stands on: batch dims that operations leave alone, and the physical operations that move them."""

import unittest

import numpy as np

import eager
from eager import Tensor
from eager.ops import _physical as physical


def batched(shape, n, dtype=np.float32):
    """A tensor whose first n dims are batch dims."""
    t = Tensor.constant(np.arange(np.prod(shape), dtype=dtype).reshape(shape))
    t._impl.batch_dims = n
    return t


class BatchDims(unittest.TestCase):
    def test_shapes(self):
        t = batched((2, 3, 4, 5), 2)
        self.assertEqual((t.shape, t.physical_global_shape, t.batch_dims), ((4, 5), (2, 3, 4, 5), 2))
        self.assertEqual((t._impl.logical_shape, t._impl.physical_shape), ((4, 5), (2, 3, 4, 5)))

    def test_carried_by_operations(self):
        t = batched((2, 3, 4), 1)
        for r, shape in [
            (t + 1, (3, 4)),
            (t.sum(axis=0), (4,)),
            (t.sum(), ()),
            (t.reshape(4, 3), (4, 3)),
            (t.T, (4, 3)),
            (t[0], (4,)),
            (t @ Tensor.ones((4, 5)), (3, 5)),
            (t.unsqueeze(0), (1, 3, 4)),
        ]:
            self.assertEqual((r.batch_dims, tuple(r.shape), int(r.physical_global_shape[0])), (1, shape, 2))

    def test_largest_wins(self):
        a, b = batched((2, 3, 4), 2), batched((3, 4), 1)
        r = a + b
        self.assertEqual((r.batch_dims, r.shape, r.physical_global_shape), (2, (4,), (2, 3, 4)))
        np.testing.assert_array_equal(r.numpy(), a.numpy() + b.numpy())
        c = batched((2, 3), 1) + Tensor.ones((5, 3))
        self.assertEqual((c.batch_dims, c.shape, c.physical_global_shape), (1, (5, 3), (2, 5, 3)))

    def test_axes_are_logical(self):
        t = batched((2, 3, 4), 1)
        np.testing.assert_array_equal(t.sum(axis=-1).numpy(), t.numpy().sum(-1))
        np.testing.assert_array_equal(t.sum(axis=0).numpy(), t.numpy().sum(1))
        with self.assertRaises(ValueError):
            t.sum(axis=2)


class Physical(unittest.TestCase):
    def test_counting(self):
        t = Tensor.ones((2, 3))
        up = eager.incr_batch_dims(t)
        self.assertEqual((up.batch_dims, up.shape), (1, (3,)))
        self.assertEqual(eager.decr_batch_dims(up).shape, (2, 3))
        with self.assertRaises(ValueError):
            eager.decr_batch_dims(t)
        with self.assertRaises(ValueError):
            eager.incr_batch_dims(Tensor.ones(()))

    def test_moving(self):
        a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        t = eager.move_axis_to_batch_dims(Tensor.constant(a), axis=1)
        self.assertEqual((t.batch_dims, t.shape), (1, (2, 4)))
        np.testing.assert_array_equal(t.numpy(), np.moveaxis(a, 1, 0))
        for dest in (0, 1, 2, -1):
            back = eager.move_axis_from_batch_dims(t, batch_axis=0, logical_destination=dest)
            self.assertEqual(back.batch_dims, 0)
            np.testing.assert_array_equal(back.numpy(), np.moveaxis(np.moveaxis(a, 1, 0), 0, dest))

    def test_broadcasting(self):
        t = eager.broadcast_batch_dims(batched((1, 4), 1), (3,))
        self.assertEqual((t.batch_dims, t.physical_global_shape), (1, (3, 4)))

    def test_reductions(self):
        t = batched((2, 3, 4), 1)
        a = t.numpy()
        for name, f in [
            ("reduce_sum", np.sum),
            ("reduce_max", np.max),
            ("reduce_min", np.min),
            ("prod", np.prod),
            ("mean", np.mean),
            ("any", np.any),
            ("all", np.all),
        ]:
            got = getattr(eager, name + "_physical")(t, axis=1, keepdims=True)
            np.testing.assert_allclose(got.numpy(), f(a, axis=1, keepdims=True), rtol=1e-6, err_msg=name)
            self.assertEqual(got.batch_dims, 1)
        self.assertEqual(eager.reduce_sum_physical(t, axis=0).physical_global_shape, (3, 4))

    def test_views(self):
        t = batched((2, 3, 4), 1)
        a = t.numpy()
        np.testing.assert_array_equal(eager.moveaxis_physical(t, 0, 1).numpy(), np.moveaxis(a, 0, 1))
        np.testing.assert_array_equal(eager.reshape_physical(t, (2, 12)).numpy(), a.reshape(2, 12))
        np.testing.assert_array_equal(eager.unsqueeze_physical(t, 0).numpy(), a[None])
        np.testing.assert_array_equal(eager.squeeze_physical(t[:, :1], 2).numpy(), a[:, :, 0])
        np.testing.assert_array_equal(eager.broadcast_to_physical(t, (5, 2, 3, 4)).numpy(), np.broadcast_to(a, (5, 2, 3, 4)))
        np.testing.assert_array_equal(eager.slice_tensor_physical(t, start=(1,), size=(1,)).numpy(), a[1:2])

    def test_module(self):
        self.assertIs(physical.moveaxis_physical, eager.moveaxis_physical)
        self.assertIs(physical.incr_batch_dims, eager.incr_batch_dims)


if __name__ == "__main__":
    unittest.main()
