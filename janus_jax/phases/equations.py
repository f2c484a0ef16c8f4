"""One traced function as a flat list of equations, each computed once.

Calls are inlined, so that every equation can go to a phase of its own. Equal equations are merged: the
compiler would do that within a program, but not across programs. What has a reason to stay together does:
`jax.checkpoint`, scans, loops, branches, kernels.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import jax.extend.core as jex
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]

Atom = Any
"""A variable or a literal of a traced program."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Inlined, with the parameter that holds their body. Nothing is differentiated any more, so custom rules are spent."""


@dataclasses.dataclass(frozen=True)
class Trace:
    """A function as equations in an order they can run in.

    Attributes:
        inputs: variables, in the order of the function's flattened arguments.
        outputs: variables or literals, in the order of its flattened results.
        consts: values of variables that are neither input nor computed.
        producer: index of the equation that computes a variable.
        number: place of each variable, inputs first, then in the order of computation.
    """

    equations: tuple[jex.JaxprEqn, ...]
    inputs: tuple[jex.Var, ...]
    outputs: tuple[Atom, ...]
    consts: Mapping[jex.Var, Any]
    producer: Mapping[jex.Var, int]
    number: Mapping[jex.Var, int]
    debug_info: Any = None


def is_var(atom: Atom) -> bool:
    return not isinstance(atom, jex.Literal)


def variables(atoms: Iterable[Atom]) -> list[jex.Var]:
    return [atom for atom in atoms if is_var(atom)]


def flatten(closed: ClosedJaxpr, *, on_mesh: bool = False) -> Trace:
    """Inline calls and merge equal equations.

    With `on_mesh` the whole is one shard_map, whose inside is what is wanted.
    A helper called twice may appear as the same inner program, so each visit has an environment of its own.
    """
    equations: list[jex.JaxprEqn] = []
    consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known: dict[Any, list[jex.Var]] = {}

    def visit(jaxpr: jex.Jaxpr, env: dict[jex.Var, Atom]) -> list[Atom]:
        def read(atom: Atom) -> Atom:
            return env.get(atom, atom) if is_var(atom) else atom

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            outermost = on_mesh and jaxpr is closed.jaxpr and eqn.primitive.name == "shard_map"
            body = eqn.params.get("jaxpr" if outermost else CALLS.get(eqn.primitive.name, ""))
            if body is not None:
                inner = getattr(body, "jaxpr", body)
                held = {v: jex.Var(v.aval) for v in inner.constvars}
                consts.update(zip(held.values(), getattr(body, "consts", ()), strict=True))
                results = visit(inner, {**held, **dict(zip(inner.invars, invars, strict=True))})
                env.update(zip(eqn.outvars, results, strict=True))
                continue
            key = _identity(eqn, invars)
            made = known.get(key) if key is not None else None
            if made is None:
                made = [jex.Var(v.aval) for v in eqn.outvars]
                equations.append(eqn.replace(invars=invars, outvars=made))
                if key is not None:
                    known[key] = made
            env.update(zip(eqn.outvars, made, strict=True))
        return [read(v) for v in jaxpr.outvars]

    outputs = visit(closed.jaxpr, {})
    producer = {v: i for i, eqn in enumerate(equations) for v in eqn.outvars}
    inputs = tuple(closed.jaxpr.invars)
    number = {v: k for k, v in enumerate((*inputs, *producer))}
    names = closed.jaxpr.debug_info.with_unknown_names()
    return Trace(tuple(equations), inputs, tuple(outputs), consts, producer, number, names)


def upstream(
    trace: Trace, goals: Iterable[Atom], done: Container[int] = (), at_hand: Container[jex.Var] = ()
) -> set[int]:
    """Equations to run for the goals, beside those `done` and with the variables `at_hand`."""
    run: set[int] = set()
    stack = variables(goals)
    while stack:
        v = stack.pop()
        index = trace.producer.get(v)
        if v not in at_hand and index is not None and index not in done and index not in run:
            run.add(index)
            stack += variables(trace.equations[index].invars)
    return run


def _identity(eqn: jex.JaxprEqn, invars: Sequence[Atom]) -> Any:
    """Equal for equations that compute the same; None where that cannot be told."""
    if eqn.effects:
        return None
    operands = tuple(v if is_var(v) else ("literal", repr(v.val), str(v.aval)) for v in invars)
    key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def as_function(
    trace: Trace, equations: Sequence[int], inputs: Sequence[jex.Var], outputs: Sequence[Atom]
) -> Callable[..., list[Any]]:
    """A function of arrays for `inputs` that runs these equations and gives `outputs`."""
    body = [trace.equations[i] for i in equations]
    effects = frozenset().union(*(eqn.effects for eqn in body))
    jaxpr = jex.Jaxpr(tuple(trace.consts), tuple(inputs), tuple(outputs), body, effects, trace.debug_info)
    return jex.jaxpr_as_fun(ClosedJaxpr(jaxpr, tuple(trace.consts.values())))
