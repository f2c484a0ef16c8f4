"""janus-jax: conservative machine-learned interatomic potentials in JAX.

    model = janus_jax.load("model.janus")
    atoms.calc = janus_jax.JanusCalculator(model)

Names are imported on first use, so that `import janus_jax` costs nothing.
"""

from importlib import import_module

_EXPORTS = {
    "AtomGraph": "janus_jax.graph",
    "Esen": "janus_jax.models.esen",
    "EsenConfig": "janus_jax.models.esen",
    "JanusCalculator": "janus_jax.calculator",
    "JanusError": "janus_jax.errors",
    "load": "janus_jax.bundle",
    "predict": "janus_jax.prediction",
    "save": "janus_jax.bundle",
}
__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'janus_jax' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__():
    return [*__all__, "__version__"]
