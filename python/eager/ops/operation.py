"""Operations: those of the table are TensorOps; users write their own as subclasses of Operation."""

from abc import ABCMeta

from eas._eas import EagerTensor, TensorOp, diff_taped, record, tensor_ops, tree_flatten, tree_unflatten

from ..sharding.propagation import follow_rule

__all__ = ["BinaryOperation", "CreationOperation", "Operation", "ReduceOperation", "TensorOp", "UnaryOperation"]

_custom = tensor_ops["custom"]


class Operation(metaclass=ABCMeta):  # noqa: B024 (a registry of ours is all that it takes from ABCs)
    """An operation of your own: give it a `name` and `maxpr`, the body in terms of other operations.
    Instances are singletons.

    class Swish(Operation):
        name = "swish"

        def maxpr(self, x, beta=1.0):
            return x * eager.sigmoid(beta * x)

    swish = Swish()

    Results carry the operation (`t._impl.op`); batch dims need nothing, since the operations in the body know
    them.
    """

    def __new__(cls):
        if "_instance" not in cls.__dict__:
            cls._instance = super().__new__(cls)
        return cls._instance

    @property
    def name(self):
        raise NotImplementedError(f"{type(self).__name__} has no name")

    def maxpr(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__}.maxpr, the operation's body, is not there")

    def vjp_rule(self, primals, cotangent, output, **kwargs):
        """Gradients of the positional arguments (a tuple; None: zero), from the cotangent of the result. Not
        overridden: derivatives go through the body."""
        raise NotImplementedError(f"{self.name} has no vjp rule")

    def jvp_rule(self, primals, tangents, output, **kwargs):
        """The tangent of the result, linear in the tangents of the positional arguments (None for those that
        are no tensors)."""
        raise NotImplementedError(f"{self.name} has no jvp rule")

    def sharding_rule(self, *shapes, **kwargs):
        """An OpShardingRule, given the shapes of the tensors and the keywords of a call. Without one,
        shardings follow the operations of the body."""
        raise NotImplementedError(f"{self.name} has no sharding rule")

    def __call__(self, *args, **kwargs):
        name = self.name
        results, tree = tree_flatten(self.maxpr(*args, **kwargs))
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, EagerTensor)]
        for i, r in enumerate(results):
            if not isinstance(r, EagerTensor):
                raise TypeError(f"{name}: result {tree.path(i)} is a {type(r).__name__}; operations give tensors")
        vjp, jvp = self._has_rule("vjp_rule"), self._has_rule("jvp_rule")
        if vjp or jvp:
            results = self._with_rules(args, kwargs, tree, results, inputs, vjp, jvp)
        else:
            results = [_custom([r, *inputs]) for r in results]
        record(self, results, args, kwargs, None if tree.num_nodes == 1 else tree)
        if any(x.sharding is not None for x in inputs):
            follow_rule(self, inputs, results, {k: v for k, v in kwargs.items() if not isinstance(v, EagerTensor)})
        return tree_unflatten(tree, results)

    def _has_rule(self, which):
        """Does the class override this rule? Without one, derivatives go through the body."""
        return getattr(type(self), which) is not getattr(Operation, which)

    def _with_rules(self, args, kwargs, tree, results, inputs, vjp, jvp):
        from ..transforms.custom import results_with_rules

        by_name = [k for k, v in kwargs.items() if any(isinstance(x, EagerTensor) for x in tree_flatten(v)[0])]
        if by_name and any(diff_taped(x) for x in inputs):
            raise TypeError(f"{self.name}: a rule gives gradients of arguments by position, and {by_name[0]} is given by name")

        def back(primals, cotangent):
            return self.vjp_rule(primals, cotangent, tree_unflatten(tree, results), **kwargs)

        def forth(primals, tangents):
            return self.jvp_rule(primals, tangents, tree_unflatten(tree, results), **kwargs)

        return results_with_rules(self.name, args, results, tree, back if vjp else None, forth if jvp else None)

    def __repr__(self):
        return f"<eager operation {self.name}>"


class UnaryOperation(Operation):
    """An operation on one tensor."""


class BinaryOperation(Operation):
    """An operation on two tensors."""


class CreationOperation(Operation):
    """An operation without tensors as arguments."""


class ReduceOperation(Operation):
    """An operation over axes of a tensor."""


Operation.register(TensorOp)
