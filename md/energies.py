"""Energies of motion and of thermostats, eV."""

import jax


def kinetic(momenta, masses) -> jax.Array:
    """Of momenta [rows, 3]; zero for rows of infinite mass."""
    return 0.5 * (momenta * (momenta / masses)).sum()


def chain(chain, kT) -> jax.Array:
    """Of a Nose-Hoover chain (Martyna, Klein, Tuckerman 1992)."""
    moving = (chain.momentum**2 / (2 * chain.mass)).sum()
    return moving + kT * (chain.degrees_of_freedom * chain.position[0] + chain.position[1:].sum())
