"""All results of a pipeline stage in one trace, with the variables of each input and output."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from janus_jax.errors import PhaseError
from janus_jax.phases.cut import Interface
from janus_jax.phases.equations import Trace, flatten

StageFunction = Callable[[Any, Any, Any, Any], Any]
"""(params, h, x, constants) -> h' or energies; differentiated in params, h and x, which hold floats only."""


Part = Literal["both", "energy", "forces"]
"""Which phases a trace is for; the last two are for schedules that run them apart, FE once in each."""


def all_results(function: StageFunction, part: Part = "both") -> Callable:
    """(params, h, x, constants, ct, ghb, gxb, lam) -> results in the order of the phases, and the gradient.

    both: h', (gh, gx), ctb, hb. energy: h', hb of lam alone. forces: h', (gh, gx), (ctb, hb of ghb and gxb).
    """

    def energy(params, h, x, constants, ct, ghb, gxb, lam):
        out, pullback = jax.vjp(lambda params, h: function(params, h, x, constants), params, h)
        gradient, hb = pullback(lam)
        return out, hb, gradient

    def forces(params, h, x, constants, ct, ghb, gxb, lam):
        def energy_pass(params, h, x):
            out, pullback = jax.vjp(lambda h, x: function(params, h, x, constants), h, x)
            return pullback, out

        pullback, energy_vjp, out = jax.vjp(energy_pass, params, h, x, has_aux=True)
        forces, force_vjp = jax.vjp(lambda pullback, ct: pullback(ct), pullback, ct)
        pullback_bar, ctb = force_vjp((ghb, gxb))
        gradient, hb, _ = energy_vjp(pullback_bar)
        return out, forces, (ctb, hb), gradient

    def everything(params, h, x, constants, ct, ghb, gxb, lam):
        def energy_pass(params, h, x):
            return jax.vjp(lambda h, x: function(params, h, x, constants), h, x)

        (out, pullback), energy_vjp = jax.vjp(energy_pass, params, h, x)
        forces, force_vjp = jax.vjp(lambda pullback, ct: pullback(ct), pullback, ct)
        pullback_bar, ctb = force_vjp((ghb, gxb))
        gradient, hb, _ = energy_vjp((lam, pullback_bar))
        return out, forces, ctb, hb, gradient

    return {"both": everything, "energy": energy, "forces": forces}[part]


def trace_stage(
    function: StageFunction, mesh: AbstractMesh | None, params, h, x, constants, part: Part = "both"
) -> tuple[Trace, Interface]:
    """The trace for these shapes; with a mesh, those of one device.

    Raises:
        PhaseError: something differentiated is no float.
    """
    _check_floats(params=params, h=h, x=x)

    def on_mesh(f):
        if mesh is None:
            return f
        # Inside, shapes are those of one device; what the outside would make of them is not used.
        return jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)

    out = jax.eval_shape(on_mesh(function), params, h, x, constants)
    arguments = (params, h, x, constants, out, h, x, out)
    closed, shapes = jax.make_jaxpr(on_mesh(all_results(function, part)), return_shape=True)(*arguments)
    trace = flatten(closed, on_mesh=mesh is not None)
    inputs, outputs = iter(trace.inputs), iter(trace.outputs)
    p, vh, vx, vc, ct, ghb, gxb, lam = (tuple(next(inputs) for _ in jax.tree.leaves(a)) for a in arguments)
    trees = [jax.tree.structure(shape) for shape in shapes]
    *delivered, gradient = (tuple(next(outputs) for _ in range(tree.num_leaves)) for tree in trees)
    phases = {"both": ("FE", "FF", "BFt", "BEh"), "energy": ("FE", "BEh"), "forces": ("FE", "FF", "BFt")}[part]
    arrives = {"FE": vh, "FF": ct, "BFt": (*ghb, *gxb), "BEh": lam}
    face = Interface(
        params=p,
        stays=(*vx, *vc),
        arrives={phase: arrives[phase] for phase in phases},
        delivers=dict(zip(phases, delivered, strict=True)),
        gradient=gradient,
        trees=dict(zip(phases, trees, strict=False)),
    )
    return trace, face


def _check_floats(**trees: Any) -> None:
    for name, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                where = f"{name}{jax.tree_util.keystr(path)}"
                raise PhaseError(f"{where} is {leaf.dtype}; {name} is differentiated and must hold floats only")
