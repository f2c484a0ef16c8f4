"""Forces, stress and second-order parameter gradients against central differences in float64.

The neighbour list is rebuilt at every displaced point, as a simulation would.
"""

import jax
import numpy as np
import pytest

from janus_jax.models.convert import save_state
from janus_jax.models.potential import Prediction
from janus_jax.testing import (
    VARIANTS,
    crystal,
    evaluate,
    molecule,
    padded,
    predict,
    rel_error,
    slab,
    variant,
    weighted_gradient,
)

STEP = 3e-5
CASES = [("gate", molecule), ("gate", slab), *((name, crystal) for name in VARIANTS)]


def deformed(atoms, displacement, strain):
    new = atoms.copy()
    new.positions = (atoms.positions + displacement) @ (np.eye(3) + strain)
    new.cell = atoms.cell.array @ (np.eye(3) + strain)
    return new


def slope(model, atoms, displacement=0.0, strain=0.0) -> float:
    """dE/ds of the deformation s * (displacement, strain) at s = 0."""
    ends = [deformed(atoms, s * np.asarray(displacement), s * np.asarray(strain)) for s in (STEP, -STEP)]
    forward, backward = evaluate(model, *ends).energy
    return (forward - backward) / (2 * STEP)


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_forces_are_minus_the_energy_gradient(name, structure):
    model, atoms, rng = variant(name), structure(), np.random.default_rng(1)
    forces = evaluate(model, atoms).forces
    directions = rng.normal(size=(4, *forces.shape))
    numeric = [-slope(model, atoms, displacement=v) for v in directions]
    assert rel_error(np.einsum("kai,ai->k", directions, forces), numeric) < 1e-6


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_virial_is_the_strain_derivative_and_stress_its_density(name, structure):
    model, atoms = variant(name), structure()
    out = evaluate(model, atoms)
    numeric = np.zeros((3, 3))
    for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]:
        strain = np.zeros((3, 3))
        strain[i, j] += 0.5
        strain[j, i] += 0.5
        numeric[i, j] = numeric[j, i] = slope(model, atoms, strain=strain)
    assert rel_error(out.virial[0], numeric) < 1e-6
    volume = atoms.cell.volume
    assert rel_error(out.stress[0], out.virial[0] / volume if volume else np.zeros((3, 3))) < 1e-12


def test_parameter_gradient_of_energies_forces_and_stress():
    model, rng = variant("gate"), np.random.default_rng(2)
    graph = padded(molecule(), crystal(), slab())
    weights = jax.tree.map(lambda x: rng.normal(size=x.shape), predict(model, graph))

    def value(step: float, direction) -> float:
        moved = jax.tree.map(lambda p, d: p + step * d, model, direction)
        out = predict(moved, graph)
        return sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(weights), strict=True))

    loss, gradient = weighted_gradient(model, graph, weights)
    assert rel_error(loss, value(0.0, model)) < 1e-12
    numeric, exact = [], []
    for _ in range(4):
        direction = jax.tree.map(lambda x: 0.1 * rng.normal(size=x.shape), model)
        numeric.append((value(STEP, direction) - value(-STEP, direction)) / (2 * STEP))
        exact.append(sum(np.vdot(gradient[name], d) for name, d in save_state(direction).items()))
    assert rel_error(exact, numeric) < 1e-6


def test_energy_weights_alone_give_the_energy_gradient():
    model, graph = variant("gate"), padded(molecule(), crystal(), slab())
    zero = jax.tree.map(np.zeros_like, predict(model, graph))
    ones = Prediction(np.ones_like(zero.energy), zero.forces, zero.virial, zero.stress)
    _, gradient = weighted_gradient(model, graph, ones)
    # The head's last bias is added to every atom that is not padding.
    count = sum(len(structure()) for structure in (molecule, crystal, slab))
    assert rel_error(gradient["head.energy_block.4.bias"], [count]) < 1e-12
