"""A model cut into stages gives, phase by phase, the gradient of single-device training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from janus_jax.errors import StageError
from janus_jax.graph import AtomGraph, LabelCounts, Targets
from janus_jax.models.potential import energy_forces_stress, from_gradient
from janus_jax.phases import Memory, Phases
from janus_jax.stages import Place, cut_model
from janus_jax.testing import crystal, molecule, padded, quick_jit, random_esen, slab
from janus_jax.train.loss import LossConfig, loss

COUNTS = LabelCounts(*(np.asarray(n) for n in (3.0, 13.0, 3.0)))


def labelled() -> AtomGraph:
    graph, rng = padded(molecule(), crystal(), slab()), np.random.default_rng(3)
    atoms, structures = len(graph.numbers), len(graph.charge)
    return graph.replace(
        targets=Targets(
            rng.normal(size=structures),
            graph.structure_mask,
            rng.normal(size=(atoms, 3)),
            graph.atom_mask,
            rng.normal(size=(structures, 3, 3)),
            graph.structure_mask,
            np.ones(structures),
        )
    )


def test_phases_chained_give_the_training_gradient():
    blocks, memory = [1, 1], Memory()
    model, graph = random_esen(num_layers=sum(blocks)), labelled()
    weights = LossConfig(energy=3.0, stress=2.0)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def single(params):
        return loss(energy_forces_stress(nnx.merge(graphdef, params, rest), graph), graph, COUNTS, weights).total

    value, exact = quick_jit(jax.value_and_grad(single))(params)
    expected = dict(nnx.to_flat_state(exact))
    stages = cut_model(model, blocks)
    options = {"xla_backend_optimization_level": 0}
    cuts, held, h, outs = [], [{} for _ in stages], (), []
    place, bare = Place.of(graph), graph.replace(targets=None)
    gradient = [jax.tree.map(jnp.zeros_like, stage.params) for stage in stages]
    for k, stage in enumerate(stages):
        phases = Phases(stage.function, memory, compiler_options=options)
        cuts.append(phases.at(stage.params, h, place, (bare, stage.fixed)))
        h, held[k], _ = cuts[k]["FE"](stage.params, {}, (h, place, (bare, stage.fixed)))
        outs.append(h)
    energy, ct, forces = outs[-1], jnp.ones_like(outs[-1]), jax.tree.map(jnp.zeros_like, place)
    for k in reversed(range(len(stages))):
        (ct, gx), held[k], _ = cuts[k]["FF"](stages[k].params, held[k], ct)
        forces = jax.tree.map(jnp.add, forces, gx)

    def total(forces, energy):
        return loss(from_gradient(energy, forces.positions, forces.strain, graph), graph, COUNTS, weights).total

    np.testing.assert_allclose(total(forces, energy), value, rtol=1e-9)
    gxb, lam = jax.grad(total, (0, 1))(forces, energy)
    ghb = ()
    for k, stage in enumerate(stages):
        ghb, held[k], _ = cuts[k]["BFt"](stage.params, held[k], (ghb, gxb))
        _, held[k], gradient[k] = cuts[k]["BFr"](stage.params, held[k], (), gradient[k])
    for k in reversed(range(len(stages))):
        lam, held[k], gradient[k] = cuts[k]["BEh"](stages[k].params, held[k], lam, gradient[k])
        _, held[k], gradient[k] = cuts[k]["BEw"](stages[k].params, held[k], (), gradient[k])
    assert not any(held)
    summed: dict = {}
    for stage, part in zip(stages, gradient, strict=True):
        for path, variable in nnx.to_flat_state(part):
            name = stage.in_model(path)
            summed[name] = summed.get(name, 0.0) + variable[...]
    assert summed.keys() == expected.keys()
    for name, value in summed.items():
        scale = jnp.maximum(jnp.abs(expected[name][...]).max(), 1e-30)
        assert float(jnp.abs(value - expected[name][...]).max() / scale) < 1e-10, name


def test_stages_hold_their_own_parameters():
    stages = cut_model(random_esen(num_layers=4), [1, 1, 1, 1])
    names = [{".".join(map(str, s.in_model(path))) for path, _ in nnx.to_flat_state(s.params)} for s in stages]
    for k, mine in enumerate(names):
        assert {name.split(".")[1] for name in mine if name.startswith("blocks.")} == {str(k)}
        assert ("sphere_embedding.weight" in mine) == (k == 0)
        assert any(name.startswith("head.") for name in mine) == (k == 3)
        assert "source_embedding.weight" in mine


@pytest.mark.parametrize("blocks", [[], [2, 1], [0, 2], [3, -1]])
def test_impossible_stages_are_refused(blocks):
    with pytest.raises(StageError, match="for a model of 2: give positive numbers with that sum"):
        cut_model(random_esen(), blocks)
