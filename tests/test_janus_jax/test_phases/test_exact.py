"""All phases of a stage equal nested jax.grad, in every memory mode, whatever the stage is made of."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from janus_jax.errors import PhaseError
from janus_jax.phases import Memory, Phases
from janus_jax.stages import Place, cut_model
from janus_jax.testing import crystal, molecule, padded, random_esen, slab
from tests.test_janus_jax.test_phases.conftest import OPTIONS, Case, worst

ATOMS, EDGES, WIDTH = 7, 30, 5
MEMORIES = {
    "keep": Memory(repeat_intensity=0.0),
    "cheap": Memory(),
    "rebuild_forces": Memory(mode="rebuild_forces"),
    "rebuild": Memory(mode="rebuild"),
    "names": Memory(names=("message",)),
    "budget": Memory(budget_mib=0.02),
}


@jax.custom_jvp
def softplus(x):
    return jnp.log1p(jnp.exp(x))


softplus.defjvps(lambda t, out, x: t * jax.nn.sigmoid(x))


@jax.custom_vjp
def cube_root(x):
    """By Newton's method in a while loop; the derivative from the inverse function."""

    def step(state):
        y, _ = state
        new = y - (y**3 - x) / (3 * y**2)
        return new, jnp.abs(new - y).max()

    return lax.while_loop(lambda state: state[1] > 1e-13, step, (jnp.ones_like(x), jnp.asarray(1.0, x.dtype)))[0]


cube_root.defvjp(lambda x: ((y := cube_root(x)), y), lambda y, t: (t / (3 * y**2),))


def radial(x, constants):
    d = x[constants["src"]] - x[constants["dst"]]
    return jnp.exp(-(d * d).sum(-1, keepdims=True))


def messages(w, h, x, constants):
    message = checkpoint_name((h[constants["src"]] @ w["W"]) * jnp.tanh(radial(x, constants) @ w["B"]), "message")
    h = h + jax.ops.segment_sum(message, constants["dst"], ATOMS) / 4
    return h + jnp.tanh(h @ w["U"]) * jnp.where(constants["mask"][:, None], 1.0, 0.5).astype(h.dtype)


def plain(params, h, x, constants):
    for w in params:
        h = messages(w, h, x, constants)
    return h


def custom(params, h, x, constants):
    h = softplus(plain(params, h, x, constants))
    return cube_root(1 + h * h) + jax.nn.silu(h)


def remat(params, h, x, constants):
    for w in params:
        h = jax.checkpoint(messages)(w, h, x, constants)
    return h


def scan(params, h, x, constants):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return lax.scan(lambda h, w: (messages(w, h, x, constants), None), h, stacked)[0]


def branches(params, h, x, constants):
    h = plain(params, h, x, constants)
    return lax.cond(constants["mask"][0], lambda h: jnp.sin(h) * h, lambda h: h, h)


def loop(params, h, x, constants):
    return lax.fori_loop(0, 3, lambda _, h: messages(params[0], h, x, constants), h) * params[1]["B"].sum()


def first(params, h, x, constants):
    assert h == ()
    return plain(params, params[0]["W"][constants["src"][:ATOMS] % WIDTH], x, constants)


def last(params, h, x, constants):
    return jnp.zeros(2, h.dtype).at[constants["dst"][:ATOMS] % 2].add((plain(params, h, x, constants) ** 2).sum(-1))


def unused(params, h, x, constants):
    """Neither positions nor the second set of parameters matter, and features go through unchanged too."""
    return {"h": h @ params[0]["W"], "same": h}


FUNCTIONS = (plain, custom, remat, scan, branches, loop, first, last, unused)


def toy(function, dtype=np.float64) -> Case:
    rng = np.random.default_rng(5)

    def normal(*shape):
        return (0.5 * rng.normal(size=shape)).astype(dtype)

    params = [{"W": normal(WIDTH, WIDTH), "U": normal(WIDTH, WIDTH), "B": normal(1, WIDTH)} for _ in range(2)]
    constants = {
        "src": rng.integers(0, ATOMS, EDGES),
        "dst": rng.integers(0, ATOMS, EDGES),
        "mask": np.arange(ATOMS) < 4,
    }
    h = () if function is first else normal(ATOMS, WIDTH)
    return Case.of(function, params, h, normal(ATOMS, 3), constants)


EVERY = os.environ.get("JANUS_JAX_EVERY") == "1"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_memory_mode_equals_nested_grad(function):
    case = toy(function)
    expected = case.expected()
    modes = MEMORIES if function is plain else ("keep", "rebuild_forces", "rebuild")
    for k, name in enumerate(modes):
        for split in (True, False) if function is plain else (k % 2 == 0,):
            phases = Phases(function, MEMORIES[name], split=split, compiler_options=OPTIONS)
            results = case.run(phases.at(case.params, case.h, case.x, case.constants))
            assert worst(results, expected) < 1e-10, (name, split)


def esen_case(kind: int, dtype) -> Case:
    """First, middle or last stage of a three-layer eSEN."""
    model = random_esen(num_layers=3, dtype=dtype)
    stage = cut_model(model, [1, 1, 1])[kind]
    graph = padded(molecule(), crystal(), slab(), dtype=dtype)
    config = model.config
    shape = (len(graph.numbers), (config.lmax + 1) ** 2, config.channels)
    h = np.random.default_rng(kind).normal(size=shape).astype(dtype) if kind else ()
    return Case.of(stage.function, stage.params, h, Place.of(graph), (graph, stage.fixed))


@pytest.mark.parametrize(
    ("kind", "memories"),
    [(0, ["cheap"]), (1, ["keep", "rebuild_forces", "rebuild"] if EVERY else ["rebuild"]), (2, ["cheap"])],
    ids=str,
)
def test_esen_stages_equal_nested_grad(kind, memories):
    case = esen_case(kind, np.float64)
    expected = case.expected()
    for name in memories:
        phases = Phases(case.function, MEMORIES[name], compiler_options=OPTIONS)
        assert worst(case.run(phases.at(case.params, case.h, case.x, case.constants)), expected) < 1e-10


def test_float32_equals_float64_to_its_precision():
    single, double = esen_case(1, np.float32), esen_case(1, np.float64)
    cut = Phases(single.function, compiler_options=OPTIONS).at(single.params, single.h, single.x, single.constants)
    results = single.run(cut)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(results))
    wide = jax.tree.map(lambda a: jnp.asarray(a, np.float64), results)
    names = ("h", "ct", "ghb", "gxb", "lam")
    for name in names:  # the same numbers, rounded
        for a, b in zip(jax.tree.leaves(getattr(single, name)), jax.tree.leaves(getattr(double, name)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert worst(wide, double.expected()) < 1e-4


def test_integers_among_the_differentiated_are_refused():
    case = toy(plain)
    with pytest.raises(PhaseError, match=r"h is int64; h is differentiated and must hold floats only"):
        Phases(plain).at(case.params, np.zeros((ATOMS, WIDTH), int), case.x, case.constants)


def test_wrong_arrivals_and_a_missing_total_are_refused():
    case = toy(plain)
    cut = Phases(plain, compiler_options=OPTIONS).at(case.params, case.h, case.x, case.constants)
    with pytest.raises(PhaseError, match="FE was given 1 arrays; it takes 5"):
        cut["FE"](case.params, {}, case.h)
    with pytest.raises(PhaseError, match="BFr adds to the gradient"):
        cut["BFr"](case.params, {}, ())


def test_a_budget_too_small_says_what_would_do():
    case = toy(plain)
    with pytest.raises(PhaseError, match=r"keeps 0\.0 MiB at least in mode 'keep'; budget_mib is 1e-06: raise it"):
        Phases(plain, Memory(budget_mib=1e-6)).at(case.params, case.h, case.x, case.constants)
