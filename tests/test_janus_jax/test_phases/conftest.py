"""A stage for the tests: its function, inputs, and the derivatives every phase must give, by nested jax.grad."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from janus_jax.phases import Cut
from janus_jax.testing import quick_jit

OPTIONS = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class Case:
    """Inputs of all phases of one stage."""

    function: Any
    params: Any
    h: Any
    x: Any
    constants: Any
    ct: Any
    ghb: Any
    gxb: Any
    lam: Any

    @staticmethod
    def of(function, params, h, x, constants, seed: int = 0) -> "Case":
        """With random cotangents."""
        out = jax.eval_shape(function, params, h, x, constants)
        rng = np.random.default_rng(seed)
        ct, ghb, gxb, lam = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), (out, h, x, out))
        return Case(function, params, h, x, constants, ct, ghb, gxb, lam)

    def expected(self) -> dict[str, Any]:
        """(out, gh, gx, ctb, hb, gradient) from first principles: gradients of gradients of scalars."""

        def dot(a, b):
            return sum((jnp.vdot(u, v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)), 0.0)

        def forces(params, h, x, ct):
            return jax.grad(lambda h, x: dot(self.function(params, h, x, self.constants), ct), (0, 1))(h, x)

        def scalar(params, h, x, ct):
            gh, gx = forces(params, h, x, ct)
            return dot(self.lam, self.function(params, h, x, self.constants)) + dot(self.ghb, gh) + dot(self.gxb, gx)

        @quick_jit
        def everything(params, h, x, ct):
            gradient, hb, ctb = jax.grad(scalar, (0, 1, 3))(params, h, x, ct)
            return {
                "out": self.function(params, h, x, self.constants),
                "forces": forces(params, h, x, ct), "ctb": ctb, "hb": hb, "gradient": gradient,
            }  # fmt: skip

        return everything(self.params, self.h, self.x, self.ct)

    def run(self, cut: Cut, held_after: dict | None = None) -> dict[str, Any]:
        """The same from the phases; what is held after each goes to `held_after`."""
        arrives = {
            "FE": (self.h, self.x, self.constants), "FF": self.ct, "BFt": (self.ghb, self.gxb), "BEh": self.lam,
        }  # fmt: skip
        arrives |= {"BF": arrives["BFt"], "BE": arrives["BEh"]}
        names = {"FE": "out", "FF": "forces", "BFt": "ctb", "BF": "ctb", "BEh": "hb", "BE": "hb"}
        results, held = {}, {}
        gradient = jax.tree.map(jnp.zeros_like, self.params)
        for step in cut:
            out, held, gradient = step(self.params, held, arrives.get(step.name, ()), gradient)
            if held_after is not None:
                held_after[step.name] = held
            if step.name in names:
                results[names[step.name]] = out
        assert not held, "something is left after the last phase"
        return results | {"gradient": gradient}


def worst(results: dict[str, Any], expected: dict[str, Any]) -> float:
    """Largest error of any array, as a part of the array's largest entry."""
    assert results.keys() == expected.keys()
    errors = [0.0]
    for name, tree in expected.items():
        pairs = zip(jax.tree.leaves(results[name]), jax.tree.leaves(tree), strict=True)
        for a, b in pairs:
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            errors.append(float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-30)) if a.size else 0.0)
    assert all(np.isfinite(errors))
    return max(errors)
