"""Array types for annotations, and `pytree`, the decorator of our array dataclasses.

Shapes are jaxtyping strings; axis names used everywhere: `atoms`, `edges`, `structures`,
`coefficients` (= (lmax+1)^2), `channels`. They are enforced by beartype in the tests only.
"""

import dataclasses
from typing import Any, dataclass_transform

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

Array = jax.Array | np.ndarray

__all__ = ["Array", "Bool", "Float", "Int", "pytree", "shapes"]


def shapes(tree: Any, *, drop: int = 0) -> Any:
    """Arrays as `jax.ShapeDtypeStruct`, without their first `drop` axes."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[drop:], a.dtype), tree)


@dataclass_transform(frozen_default=True)
def pytree(cls):
    """Make `cls` a frozen dataclass whose fields are pytree children.

    Unlike `jax.tree_util.register_dataclass`, rebuilding from leaves skips the constructor, so
    that a tree of shapes, shardings or booleans in place of arrays passes the shape checks.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(cls))

    def flatten(node):
        return tuple((jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in names), None

    def unflatten(_, children):
        node = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(node, name, child)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
