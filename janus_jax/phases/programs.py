"""The phases of a pipeline stage as compiled programs, one for each phase and shape.

    phases = Phases(function, Memory())            # function(params, h, x, constants) -> h' or energies
    cut = phases.at(params, h, x, constants)       # traced once for these shapes
    out, held, _ = cut["FE"](params, {}, (h, x, constants))
    (gh, gx), held, _ = cut["FF"](params, held, ct)
    ctb, held, _ = cut["BFt"](params, held, (ghb, gxb))
    _, held, gradient = cut["BFr"](params, held, (), gradient)
    hb, held, gradient = cut["BEh"](params, held, lam, gradient)
    _, held, gradient = cut["BEw"](params, held, (), gradient)     # held is empty now

`held` is a dictionary of arrays: what the micro-batch keeps on the device between its phases.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from janus_jax.errors import PhaseError
from janus_jax.phases.cost import flops, nbytes
from janus_jax.phases.cut import ENERGY, FORCES, FOUR, SIX, Interface, Program, cut
from janus_jax.phases.equations import Trace, as_function
from janus_jax.phases.memory import LADDER, Memory
from janus_jax.phases.tracing import Part, StageFunction, trace_stage
from janus_jax.typing import Array, shapes

Held = Mapping[int, Array]
"""Arrays by number of their variable in the trace: a pytree."""
MIB = 2**20


class Phases:
    """The phases of one kind of stage; stages with equal functions and shapes share programs.

    Args:
        function: see `StageFunction`. `x` is what forces are gradients in (positions, strain);
            `constants` holds everything that is not differentiated (graph, masks, fixed variables).
        memory: what is kept between phases.
        split: six programs; otherwise BFt + BFr = BF and BEh + BEw = BE are one each.
        part: "energy": FE and BE only, "forces": FE, FF and BF only, with dL/dh beside ctb among BF's results;
            for schedules that run FE again for the sake of FF.
        mesh: the stage's devices. Every array but the parameters then has a leading axis with one entry a
            device, the function sees its own entry and may use collectives over the mesh's axes, and the
            gradient keeps that axis (it is summed once a step). None: one device, no such axis.
        compiler_options: of jax.jit, for all programs.
    """

    def __init__(
        self,
        function: StageFunction,
        memory: Memory | None = None,
        *,
        split: bool = True,
        part: Part = "both",
        mesh: Mesh | None = None,
        compiler_options: dict[str, Any] | None = None,
    ):
        self.function, self.memory, self.mesh = function, memory or Memory(), mesh
        self.compiler_options = compiler_options
        self.part: Part = part
        self.groups = {"both": SIX if split else FOUR, "energy": ENERGY, "forces": FORCES}[part]
        self._cuts: dict[Any, Cut] = {}
        self._plans: dict[Any, Plan] = {}

    def on(self, mesh: Mesh) -> "Phases":
        """The same phases on other devices; what has been traced for a mesh of this shape is shared."""
        other = copy.copy(self)
        other.mesh, other._cuts = mesh, {}
        return other

    def at(self, params: Any, h: Any, x: Any, constants: Any) -> "Cut":
        """The programs for these shapes (arrays or jax.ShapeDtypeStruct); traced the first time only."""
        arguments = (params, h, x, constants)
        leaves, tree = jax.tree.flatten(arguments)
        key = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._cuts:
            mesh = None if self.mesh is None else self.mesh.abstract_mesh
            if (mesh, key) not in self._plans:
                self._plans[mesh, key] = Plan(self, mesh, *shapes(arguments))
            self._cuts[key] = Cut(self._plans[mesh, key], self.mesh, self.compiler_options)
        return self._cuts[key]


class Plan:
    """A traced stage and what each program does."""

    def __init__(self, phases: Phases, mesh: AbstractMesh | None, params: Any, h: Any, x: Any, constants: Any):
        if mesh is not None:
            h, x, constants = shapes((h, x, constants), drop=1)
        self.trace, self.face = trace_stage(phases.function, mesh, params, h, x, constants, phases.part)
        self.memory, self.programs = _within_budget(self.trace, self.face, phases.memory, phases.groups)


class Cut:
    """Programs of a stage for one set of shapes, by name: FE, FF, then BFt, BFr, BEh, BEw or BF, BE."""

    def __init__(self, plan: Plan, mesh: Mesh | None, compiler_options: dict[str, Any] | None):
        self.mesh, self.trace, self.face = mesh, plan.trace, plan.face
        self.memory, self.programs = plan.memory, plan.programs
        self._steps = {_name(p.phases): Step(self, p, compiler_options) for p in self.programs}

    def __getitem__(self, name: str) -> "Step":
        return self._steps[name]

    def __iter__(self):
        return iter(self._steps.values())

    def held_bytes(self, program: Program) -> int:
        """Bytes of a micro-batch held on a device after a program, beside graph, positions and parameters."""
        return _held_bytes(program, self.face)

    def table(self) -> str:
        """Per program: equations, operations (millions), part of them repeated, bytes kept anew and held in all."""
        rows = [("phase", "equations", "MFLOP", "repeated", "keeps MiB", "held MiB")]
        for program in self.programs:
            work = sum(flops(self.trace.equations[i]) for i in program.equations)
            again = sum(flops(self.trace.equations[i]) for i in program.repeated)
            kept = sum(nbytes(v) for v in program.keeps) / MIB
            rows.append((
                _name(program.phases), str(len(program.equations)), f"{work / 1e6:.1f}",
                f"{100 * again / work if work else 0:.1f} %", f"{kept:.2f}", f"{self.held_bytes(program) / MIB:.2f}",
            ))  # fmt: skip
        width = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  ".join(word.rjust(w) for word, w in zip(row, width, strict=True)) for row in rows)


class Step:
    """One compiled program: called with parameters, what is held and what arrives.

    Attributes:
        done: an array that is ready when the latest call has been computed; nothing else reads it.
    """

    done: jax.Array | None = None

    def __init__(self, owner: Cut, program: Program, compiler_options: dict[str, Any] | None):
        trace, face = owner.trace, owner.face
        self.program, self.name = program, _name(program.phases)
        number = trace.number
        loaded = face.stays if "FE" in program.phases else ()
        self._arrive = [number[v] for v in (*program.arrives, *loaded)]
        self._deliver = next((face.trees[p] for p in program.phases if p in face.trees), jax.tree.structure(()))
        reads = program.reads(trace)
        place = {v: k for k, v in enumerate(face.params)}
        self._params = [place[v] for v in reads if v in place]
        values = [v for v in reads if v not in place]
        self._sums = list(dict.fromkeys(k for k, _ in program.terms))
        read_params = [v for v in reads if v in place]
        terms = [atom for _, atom in program.terms]
        outputs = [*program.delivers, *program.keeps, *terms]
        self._body = as_function(trace, program.equations, [*read_params, *values], outputs)
        self._read, self._keep, self._hold = ([number[v] for v in vs] for vs in (values, program.keeps, program.held))
        self._ends = tuple(itertools.accumulate(map(len, (program.delivers, program.keeps, terms))))
        self.run = jax.jit(self._on_mesh(owner.mesh), donate_argnums=2, compiler_options=compiler_options)

    def _on_mesh(self, mesh: Mesh | None) -> Callable:
        if mesh is None:
            return partial(self._local, lead=False)
        rest = P(mesh.axis_names)
        return jax.shard_map(
            partial(self._local, lead=True), mesh=mesh, in_specs=(P(), rest, rest), out_specs=rest, check_vma=False
        )

    def _local(self, params: Sequence[Array], values: Sequence[Array], sums: Sequence[Array], *, lead: bool):
        """(delivered, kept, gradient sums, nothing) on one device; the last is there when all has been computed."""
        if lead:
            values, sums = jax.tree.map(lambda a: a[0], (values, sums))
        out = self._body(*params, *values)
        delivered, kept, terms = (out[a:b] for a, b in itertools.pairwise((0, *self._ends)))
        total = dict(zip(self._sums, sums, strict=True))
        for (k, _), term in zip(self.program.terms, terms, strict=True):
            total[k] = total[k] + term
        results = delivered, kept, list(total.values()), jnp.zeros((), jnp.int32)
        return jax.tree.map(lambda a: jnp.asarray(a)[None], results) if lead else results

    def __call__(self, params: Any, held: Held, arrives: Any, gradient: Any = None) -> tuple[Any, dict, Any]:
        """(what is delivered, what is held from now on, gradient).

        Args:
            arrives: FE: (h, x, constants); FF: ct; BFt, BF: (ghb, gxb); BEh, BE: lam; else ().
            gradient: running total over micro-batches, shaped like params; needed from BFr, BF on. Its
                buffers are given away.
        """
        leaves = jax.tree.leaves(arrives)
        if len(leaves) != len(self._arrive):
            raise PhaseError(f"{self.name} was given {len(leaves)} arrays; it takes {len(self._arrive)}")
        env = {**held, **dict(zip(self._arrive, leaves, strict=True))}
        flat = jax.tree.leaves(params)
        if self._sums and gradient is None:
            raise PhaseError(f"{self.name} adds to the gradient; give the running total, zeros at first")
        total, tree = jax.tree.flatten(gradient)
        out, kept, sums, self.done = self.run(
            [flat[k] for k in self._params], [env[k] for k in self._read], [total[k] for k in self._sums]
        )
        for k, value in zip(self._sums, sums, strict=True):
            total[k] = value
        env.update(zip(self._keep, kept, strict=True))
        return jax.tree.unflatten(self._deliver, out), {k: env[k] for k in self._hold}, jax.tree.unflatten(tree, total)


def _name(phases: tuple[str, ...]) -> str:
    return phases[0] if len(phases) == 1 else phases[0][:2]


def _held_bytes(program: Program, face: Interface) -> int:
    stays = set(face.stays)
    return sum(nbytes(v) for v in program.held if v not in stays)


def _within_budget(trace: Trace, face: Interface, memory: Memory, groups) -> tuple[Memory, list[Program]]:
    """The programs; with a budget, those that repeat least among the ones that fit."""
    rungs = [memory.repeat_intensity]
    rungs += [r for r in LADDER if memory.budget_mib is not None and r > memory.repeat_intensity]
    least = None
    for rung in rungs:
        tried = memory.model_copy(update={"repeat_intensity": rung})
        programs = cut(trace, face, tried, groups)
        peak = max(_held_bytes(p, face) for p in programs) / MIB
        if memory.budget_mib is None or peak <= memory.budget_mib:
            return tried, programs
        least = peak if least is None else min(peak, least)
    raise PhaseError(
        f"a micro-batch keeps {least:.1f} MiB at least in mode {memory.mode!r}; budget_mib is {memory.budget_mib:g}: "
        "raise it, choose mode 'rebuild_forces' or 'rebuild', or smaller micro-batches"
    )
