"""Versions of this package, Python and what we build on: for reports and bug reports."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "e3nn-jax", "jax-md", "orbax-checkpoint", "numpy", "ase", "vesin", "pydantic",
    "tblite",
)  # fmt: skip


def versions() -> dict[str, str]:
    """By package; "not installed" for those that are optional and missing."""
    from janus_jax import __version__

    found = {"janus-jax": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
