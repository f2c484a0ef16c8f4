"""Weights of a model to and from a flat mapping name -> array.

A name is the path of the parameter in the module tree, joined by dots. Models name their attributes
as the public implementations do, so that their checkpoints need no table of names.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import DTypeLike

from janus_jax.errors import ConfigError, StateMismatchError


def name_of(path: tuple) -> str:
    return ".".join(str(part) for part in path)


def load_state[M: nnx.Module](model: M, mapping: Mapping[str, np.ndarray]) -> M:
    """`model` (may be abstract) with every variable taken from `mapping`, in the mapping's dtype.

    Raises:
        StateMismatchError: names are missing or unknown, or a shape differs; all are listed.
    """
    graphdef, state = nnx.split(model)
    flat = {name_of(path): (path, variable) for path, variable in nnx.to_flat_state(state)}
    missing, unknown = sorted(flat.keys() - mapping.keys()), sorted(mapping.keys() - flat.keys())
    shapes = [
        f"{name}: {tuple(np.shape(mapping[name]))}, expected {variable.shape}"
        for name, (_, variable) in flat.items()
        if name in mapping and np.shape(mapping[name]) != variable.shape
    ]
    if missing or unknown or shapes:
        raise StateMismatchError(missing, unknown, shapes)
    loaded = [(path, variable.replace(jnp.asarray(mapping[name]))) for name, (path, variable) in flat.items()]
    return nnx.merge(graphdef, nnx.from_flat_state(loaded))


def save_state(model: nnx.Module) -> dict[str, np.ndarray]:
    """Every variable of `model` as numpy, by name."""
    return {name_of(path): np.asarray(variable[...]) for path, variable in nnx.to_flat_state(nnx.state(model))}


def check_precision(precision: str) -> None:
    """Raises ConfigError if float64 is asked for but JAX is in its 32-bit mode."""
    if precision == "float64" and not jax.config.jax_enable_x64:
        raise ConfigError("float64 needs JAX's 64-bit mode: set JAX_ENABLE_X64=1 (the command line does it itself).")


def cast[M: nnx.Module](model: M, dtype: DTypeLike) -> M:
    """`model` with all floating-point variables in `dtype`.

    Raises:
        ConfigError: float64 in JAX's 32-bit mode, which would silently drop digits.
    """
    check_precision(np.dtype(dtype).name)
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda x: x.astype(dtype), state))
