"""jacfwd; see jacrev.py."""

from .jacrev import hessian, jacfwd

__all__ = ["hessian", "jacfwd"]
