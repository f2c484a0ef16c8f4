"""The state of an engine as arrays, and an engine from such a state."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from janus_jax.errors import ConfigError
from md import restart
from md.layout import rows_by_id
from md.potential import Evaluation
from md.restart import Saved

if TYPE_CHECKING:
    from md.engine import Engine

ATOMS = ("ids", "numbers", "turns", "origin")
KEPT = ("name", "timestep_fs", "tau_fs", "barostat_tau_fs")
"""Of an ensemble: a thermostat of other ones would not be that of the checkpoint."""


def state(engine: "Engine") -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Arrays and description of an engine's present state, for `md.restart.Checkpoints`."""
    arrays = {name: getattr(engine, name) for name in ATOMS}
    arrays["reference"] = engine.built_from
    arrays["build_cell"], arrays["origin_cell"] = engine.build_cell, engine.origin_cell
    for k, leaf in enumerate(jax.tree.leaves(engine.motion)):
        arrays[f"motion/{k}"] = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    about = {
        "step": engine.step, "since_build": engine.since_build, "rebuilds": dict(engine.rebuilds),
        "by_rank": engine.by_rank.tolist(), "halo_after_cut": engine.halo_after_cut, "ranks": engine.cut.ranks,
        "rows": engine.rows, "method": engine.cut.method, "shape": engine.cut.shape, "atoms": engine.atoms,
        "ensemble": engine.ensemble.model_dump(mode="json"),
    }  # fmt: skip
    return arrays, about | restart.described(engine.build.capacity, engine.build.settings.transport)


def _known(engine: "Engine", saved: Saved) -> None:
    about = saved.about
    for name in KEPT:
        was, is_ = about["ensemble"][name], getattr(engine.ensemble, name)
        if was != is_:
            raise ConfigError(
                f"ensemble.{name}: the checkpoint has {was}, given is {is_}; start a new run from final.extxyz instead"
            )
    engine.origin_cell = engine.place.everywhere(saved.arrays["origin_cell"])
    engine.step, engine.since_build = about["step"], about["since_build"]
    engine.rebuilds.update(about["rebuilds"])
    engine.halo_after_cut = about["halo_after_cut"]


def go_on(engine: "Engine", saved: Saved) -> None:
    """From a checkpoint of as many devices: the same lists in the same order, so the same bits."""
    _known(engine, saved)
    engine.by_rank = np.array(saved.about["by_rank"], np.int64)
    for name in ATOMS:
        setattr(engine, name, saved.arrays[name])
    leaves, structure = _motion(engine)
    engine.motion = structure.unflatten(map(_typed, saved.motion(), leaves))
    engine.system = engine.prepare(saved.arrays["reference"], saved.arrays["build_cell"])


def go_on_elsewhere(engine: "Engine", saved: Saved) -> None:
    """From a checkpoint of another number of devices: atoms get new owners, and lists are built anew."""
    _known(engine, saved)
    old = np.asarray(saved.arrays["ids"])

    def moved(array, fill: Any = 0):
        return engine.place.by_owner(rows_by_id(old, np.asarray(array)), fill)

    engine.turns, engine.origin = moved(saved.arrays["turns"]), moved(saved.arrays["origin"])
    leaves, structure = _motion(engine)
    found = []
    for value, like in zip(saved.motion(), leaves, strict=True):
        if like.shape[:1] == engine.ids.shape:
            found.append(moved(value, np.inf if like.shape[1] == 1 else 0))  # masses are the only [rows, 1]
        else:
            found.append(engine.place.everywhere(_typed(value, like)))
    engine.motion = structure.unflatten(found)
    engine.rebuild("resumed")
    engine.halo_after_cut = engine.halo_rows


def _motion(engine: "Engine") -> tuple[list[Any], Any]:
    """Shapes of the leaves of a motion, and its structure."""

    def shape(*lengths: int):
        return jax.ShapeDtypeStruct(lengths, engine.dtype)

    total = engine.cut.ranks * engine.rows
    rows, masses, one, cell = shape(total, 3), shape(total, 1), shape(), shape(3, 3)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.tree.flatten(
        jax.eval_shape(engine.programs.start, rows, rows, Evaluation(one, rows, cell, one), masses, cell, key)
    )


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _typed(value: Any, like: Any) -> Any:
    """A leaf as it was: numbers of a key are a key again."""
    return jax.random.wrap_key_data(value) if _is_key(like) else value
