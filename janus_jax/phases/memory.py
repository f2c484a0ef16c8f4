"""What is kept between phases, and what is made again: the one place where that is decided.

Values needed on both sides of a cut can be kept, or made again from others that are. The cheapest choice is
a minimum cut of the graph of values (as in PyTorch's min-cut partitioner): sources are inputs and values
that are too dear to repeat, sinks what later phases read, and the price of a value is its bytes.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import jax.extend.core as jex
import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from janus_jax.configuration import Section
from janus_jax.phases.cost import intensity, is_view, nbytes
from janus_jax.phases.equations import Trace, variables

UNBOUNDED = 2**30


class Memory(Section):
    """How much pipeline stages keep between the phases of a micro-batch."""

    mode: Literal["keep", "rebuild_forces", "rebuild"] = "keep"
    """keep: what later phases need; rebuild_forces: nothing of FF, made again in BF; rebuild: inputs only."""
    repeat_intensity: NonNegativeFloat = 16.0
    """Equations of at most so many operations per entry may be repeated rather than kept; 0: none."""
    names: tuple[str, ...] = ()
    """If given, of FE and FF only values marked with jax.ad_checkpoint.checkpoint_name and these names are kept."""
    budget_mib: PositiveFloat | None = Field(default=None)
    """If given, repeat_intensity is raised until a micro-batch keeps no more than this, MiB."""


LADDER = (16.0, 32.0, 64.0, 256.0, math.inf)
"""Intensities tried for a budget."""

Repeatable = Callable[[int], bool]
"""Whether the equation with an index may be run again."""


def repeatable(trace: Trace, memory: Memory, constant: Collection[jex.Var]) -> Repeatable:
    """Which equations may be repeated in later phases: the rule of `memory` outside of its rebuild modes.

    Args:
        constant: variables that depend on parameters alone; keeping them would copy parameters.
    """
    equations = trace.equations

    def allowed(index: int) -> bool:
        eqn = equations[index]
        if is_view(eqn) or all(v in constant for v in eqn.outvars):
            return True
        if memory.names:
            return eqn.params.get("name") not in memory.names or eqn.primitive.name != "name"
        return memory.repeat_intensity > 0 and intensity(eqn) <= memory.repeat_intensity

    return allowed


def minimum_cut(
    trace: Trace,
    needed: Iterable[jex.Var],
    available: Collection[jex.Var],
    free: Collection[jex.Var],
    repeat: Repeatable,
) -> set[jex.Var]:
    """The smallest set of values from which `needed` can be made by repeatable equations.

    Args:
        needed: what later phases read.
        available: values at hand, which may be kept; inputs are among them.
        free: inputs that stay at hand at no price (parameters, the graph and positions).
        repeat: which equations may run again.

    Returns:
        A subset of `available`. Of several smallest sets the one that repeats least.
    """
    number: dict[jex.Var, int] = {}
    stack = list(needed)
    sinks = set(stack)
    operands: dict[jex.Var, list[jex.Var]] = {}
    while stack:
        v = stack.pop()
        if v in number:
            continue
        number[v] = len(number)
        index = trace.producer.get(v)
        if index is None or not repeat(index):
            operands[v] = []
        else:
            operands[v] = variables(trace.equations[index].invars)
            stack += operands[v]
    if not number:
        return set()
    total = sum(nbytes(v) for v in number if v in available and v not in free)
    unit = max(1, math.ceil(total / (UNBOUNDED // 2)))
    source, sink = 2 * len(number), 2 * len(number) + 1
    edges: list[tuple[int, int, int]] = []
    for v, k in number.items():
        price = 0 if v in free else math.ceil(nbytes(v) / unit) if v in available else UNBOUNDED
        edges.append((2 * k, 2 * k + 1, price))
        index = trace.producer.get(v)
        if index is None or not repeat(index):
            edges.append((source, 2 * k, UNBOUNDED))
        edges += [(2 * number[u] + 1, 2 * k, UNBOUNDED) for u in dict.fromkeys(operands[v])]
        if v in sinks:
            edges.append((2 * k + 1, sink, UNBOUNDED))
    starts, ends, prices = np.array(edges, np.int32).T
    graph = csr_array(coo_array((prices, (starts, ends)), shape=(sink + 1, sink + 1)))
    flow = maximum_flow(graph, source, sink).flow
    rest = csr_array(graph - flow)
    rest.data = (rest.data > 0).astype(np.int32)
    rest.eliminate_zeros()
    reaching = set(breadth_first_order(csr_array(rest.T), sink, return_predecessors=False).tolist())
    saved = {v for v, k in number.items() if 2 * k + 1 in reaching and 2 * k not in reaching}
    assert saved <= set(available), "a later phase needs what was dropped"
    return saved
