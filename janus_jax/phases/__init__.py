"""Training phases of a pipeline stage, cut from one trace (DESIGN.md, section 4)."""

from janus_jax.phases.memory import Memory
from janus_jax.phases.programs import Cut, Phases, Step

__all__ = ["Cut", "Memory", "Phases", "Step"]
