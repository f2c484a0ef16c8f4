"""Potentials, and the registry from a configuration's `name` to its class."""

from janus_jax.models.esen import Esen, EsenConfig

POTENTIALS = {"esen": (EsenConfig, Esen)}

ModelConfig = EsenConfig
"""Any potential's configuration (a union, told apart by `name`, once there are several)."""


def build(config: ModelConfig, **options):
    """A potential with fresh weights; `options` are `rngs`, `scale`, `references` of `Potential`."""
    return POTENTIALS[config.name][1](config, **options)
