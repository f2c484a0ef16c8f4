"""What equations and values cost, counted on the trace: floating-point operations and bytes."""

import math

import jax.extend.core as jex
import numpy as np

from janus_jax.phases.equations import is_var

VIEWS = {
    "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "expand_dims", "iota", "reshape",
    "slice", "squeeze", "stop_gradient", "transpose",
}  # fmt: skip
"""The same numbers in another arrangement: keeping the result beside the operand would store them twice."""

TRANSCENDENTAL = {
    "cos", "erf", "erf_inv", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "sin", "tan", "tanh",
}  # fmt: skip
COLLECTIVES = {
    "all_gather", "all_gather_invariant", "all_to_all", "pmax", "pmin", "ppermute", "psum", "psum2",
    "psum_invariant", "ragged_all_to_all", "reduce_scatter",
}  # fmt: skip
SCATTER = ("scatter", "cumsum", "cumprod", "cummax", "sort", "top_k")
BODIES = ("jaxpr", "call_jaxpr", "body_jaxpr", "cond_jaxpr")


def shape(value) -> tuple[int, ...]:
    """Of a variable or literal; () for what is no array."""
    return getattr(value.aval, "shape", ())


def elements(value) -> int:
    """Entries of a variable or literal."""
    return math.prod(shape(value))


def nbytes(value: jex.Var) -> int:
    """Bytes of a variable."""
    dtype = getattr(value.aval, "dtype", None)
    return elements(value) * (np.dtype(dtype).itemsize if isinstance(dtype, np.dtype) else 8)


def flops(eqn: jex.JaxprEqn) -> float:
    """Floating-point operations of an equation, roughly: views cost nothing, tanh and its like 8 an entry."""
    name = eqn.primitive.name
    out = sum(elements(v) for v in eqn.outvars)
    if name in VIEWS:
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * out * math.prod(shape(eqn.invars[0])[i] for i in contracted)
    bodies = [body for key in BODIES if (body := eqn.params.get(key)) is not None]
    bodies += list(eqn.params.get("branches", ()))
    if bodies:
        repeats = eqn.params.get("length", 1)
        return repeats * sum(flops(inner) for body in bodies for inner in getattr(body, "jaxpr", body).eqns)
    if name.startswith(("reduce_", "arg")) or name.startswith(SCATTER):
        return float(max(elements(v) for v in eqn.invars))
    return float(out * (8 if name in TRANSCENDENTAL else 1))


def intensity(eqn: jex.JaxprEqn) -> float:
    """Operations per entry of the result: what repeating it costs beside reading it back; infinite where never cheap.

    Scatters and sorts are slow out of proportion, collectives wait for other devices, and whole calls
    (scan, checkpoint, kernels) are as long as their authors made them.
    """
    name = eqn.primitive.name
    opaque = any(key in eqn.params for key in (*BODIES, "branches")) or "call" in name
    if opaque or name in COLLECTIVES or name.startswith(SCATTER):
        return math.inf
    return flops(eqn) / max(1, sum(elements(v) for v in eqn.outvars))


def is_view(eqn: jex.JaxprEqn) -> bool:
    """Whether the result repeats numbers of the operand."""
    return eqn.primitive.name in VIEWS and all(is_var(v) or not shape(v) for v in eqn.invars)
