"""Charge, spin multiplicity and data set of a structure: read, checked and told here for all entrances.

Calculator, dynamics, training data, `predict`, labelling and the functions for jax-md read `atoms.info` with `of` and
ask `check` whether a model can take it, so that none of them truncates, clips or forgets what another refuses.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms

from janus_jax.errors import StructureError

if TYPE_CHECKING:
    from janus_jax.models.potential import Potential

MAX_CHARGE, MAX_SPIN = 100, 100
"""Of models with a table of embeddings."""
WHOLE = np.iinfo(np.int32)
NAMES = ("charge", "spin", "dataset")


def whole(name: str, value: Any) -> int:
    """A charge, spin multiplicity or index of a data set as the integer it must be; 0 for None.

    Raises:
        StructureError: it is none, or none of 32 bits.
    """
    if value is None:
        return 0
    try:
        if isinstance(value, bool | np.bool_) or int(value) != float(value):
            raise ValueError
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise StructureError(f"{name} is {value}, which is not an integer; round it, or leave it out") from None
    if not WHOLE.min <= number <= WHOLE.max:
        raise StructureError(f"{name} is {number}; {WHOLE.min} to {WHOLE.max} can be stored")
    return number


def of(atoms: Atoms, dataset: Any = 0) -> dict[str, int]:
    """What models read of a structure besides its atoms: charge and spin of `atoms.info` (0 if absent), data set.

    Raises:
        StructureError: one is not an integer.
    """
    given = (atoms.info.get("charge"), atoms.info.get("spin"), dataset)
    return {name: whole(name, value) for name, value in zip(NAMES, given, strict=True)}


def reads(model: "Potential") -> bool:
    """Whether a model sees charge and spin."""
    return getattr(model.config, "charge_spin", "none") != "none"


def check(model: "Potential", charge: Any, spin: Any, dataset: Any) -> None:
    """Refuse what is outside a model's embeddings: indexing beyond a table would silently use its last row.

    Args:
        charge, spin, dataset: of one or many structures, integers.

    Raises:
        StructureError: with what is given and what is allowed.
    """
    kind, sets = getattr(model.config, "charge_spin", "none"), getattr(model.config, "datasets", ())
    limits = {"dataset": (0, max(len(sets) - 1, 0))}
    if kind == "table":
        limits |= {"charge": (-MAX_CHARGE, MAX_CHARGE), "spin": (0, MAX_SPIN)}
    elif kind != "none":
        limits["spin"] = (0, WHOLE.max)
    given = {"charge": np.atleast_1d(charge), "spin": np.atleast_1d(spin), "dataset": np.atleast_1d(dataset)}
    for name, (low, high) in limits.items():
        bad = given[name][(given[name] < low) | (given[name] > high)]
        if len(bad) and name == "dataset" and not sets:
            raise StructureError(f"dataset is {bad[0]}, but the model has no data sets; leave it out")
        if len(bad):
            raise StructureError(f"{name} is {bad[0]}; the model allows {low} to {high}.")


def charged(charge: Any, spin: Any) -> np.ndarray:
    """Which structures have a charge, or a spin multiplicity other than that of closed shells (1; 0: not given)."""
    return (np.atleast_1d(charge) != 0) | ~np.isin(np.atleast_1d(spin), (0, 1))


def unseen(model: "Potential", given: dict[str, int]) -> str | None:
    """A sentence about a charge or spin of one structure that the model does not see; None if there is none."""
    if reads(model) or not charged(given["charge"], given["spin"])[0]:
        return None
    return (
        f"the structure has charge {given['charge']} and spin {given['spin']} in its info, which this model does not "
        "see (charge_spin: none): results are the same without"
    )


def unseen_of_many(charge: np.ndarray, spin: np.ndarray, name: Callable[[int], str]) -> str | None:
    """A sentence with counts about the structures that a model with `charge_spin: none` takes for others, or None.

    Args:
        charge, spin: [structures]; name: of a structure by its place in these.
    """
    found = np.flatnonzero(charged(charge, spin))
    if not len(found):
        return None
    with_charge, with_spin = int((charge != 0).sum()), int(charged(0, spin).sum())
    return (
        f"{len(found)} of {len(charge)} structures have a charge ({with_charge}) or a spin multiplicity above 1 "
        f"({with_spin}), which models with charge_spin: none do not see; "
        f"model.charge_spin: sinusoidal or table are for these. The first is {name(int(found[0]))}"
    )
