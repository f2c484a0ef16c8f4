"""A trained model in another form: another precision or checkpoint, plain weights, or a compiled program."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export as jax_export

from janus_jax import bundle
from janus_jax.errors import ConfigError, MissingPackageError, ModelFileError, UnknownNameError
from janus_jax.graph import AtomGraph
from janus_jax.models import convert
from janus_jax.models.potential import Potential, energy_forces_stress

SUFFIXES = (".janus", ".npz", ".stablehlo")
PLATFORMS = ("cpu", "cuda")


def export(
    model: str | Path,
    out: str | Path,
    *,
    weights: str = "averaged",
    step: int | None = None,
    precision: str | None = None,
    capacity: Sequence[int] = (256, 16384),
) -> Path:
    """Write a model file or run folder in the form that the suffix of `out` names.

    `.janus`: a model file. `.npz`: the weights by name, nothing else. `.stablehlo`: `program` for
    arrays of a fixed capacity, serialized by `jax.export`; it runs without this package.

    Args:
        weights: "averaged" or "raw"; raw ones, and other steps, are in the checkpoints of a run folder.
        step: of a checkpoint; None: the model as shipped (averaged), the best checkpoint (raw).
        precision: float32 or float64; None: as stored.
        capacity: atoms and edges of the program.

    Raises:
        ConfigError: `out` exists; raw weights or a step are asked of something that is no run folder.
        UnknownNameError: the suffix is none of SUFFIXES.
        CheckpointError, ModelFileError: what is asked for is not there or cannot be read.
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise UnknownNameError("suffix", out.suffix, SUFFIXES)
    if out.exists():
        raise ConfigError(f"{out}: exists already; give another name.")
    header = bundle.describe(model)
    potential = bundle.load(model)
    if weights == "raw" or step is not None:
        potential = from_checkpoint(Path(model), potential, weights, step)
    if precision is not None:
        potential = convert.cast(potential, precision)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".janus":
        bundle.save(out, potential, header["summary"] | {"weights": weights}, header["data_hash"])
    elif out.suffix == ".npz":
        np.savez(out, **convert.save_state(potential))  # pyright: ignore[reportArgumentType]
    else:
        out.write_bytes(program(potential, *capacity))
    return out


def from_checkpoint(folder: Path, potential: Potential, weights: str, step: int | None) -> Potential:
    """`potential` with raw or averaged weights of a checkpoint of its run (the best if `step` is None)."""
    from janus_jax.train.checkpoint import Checkpoints
    from janus_jax.train.run import read_config
    from janus_jax.train.state import Trainer

    if not (folder / "checkpoints").is_dir():
        raise ConfigError(f"{folder}: raw weights and steps are in the checkpoints of a run folder; this is none.")
    config = read_config(folder / "config.yaml", [])
    trainer = Trainer(potential, config.optimizer, config.steps, config.loss)
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        there = checkpoints.steps()
        chosen = checkpoints.best() if step is None else step
        if chosen not in there:
            raise ModelFileError(folder, f"has no checkpoint of step {chosen}; there are {there}")
        state = checkpoints.state(chosen, trainer.init(potential))
    finally:
        checkpoints.close()
    return trainer.model(state, params=state.params if weights == "raw" else state.ema)


def program(model: Potential, atoms: int, edges: int) -> bytes:
    """`energy_forces_stress` of one structure as a serialized JAX program for CPU and CUDA.

    Called with a dictionary of arrays, named as the fields of `AtomGraph` (padded as `pad` does),
    it returns energy [1] without reference energies, forces [atoms, 3], virial and stress [1, 3, 3].
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise MissingPackageError("flatbuffers", extra="export", purpose="exporting a compiled program")
    graphdef, state = nnx.split(model)
    real = model.dtype

    def run(arrays: dict[str, Any]) -> dict[str, Any]:
        result = energy_forces_stress(nnx.merge(graphdef, state), AtomGraph(**arrays))
        return {name: getattr(result, name) for name in ("energy", "forces", "virial", "stress")}

    shapes = {
        "positions": ((atoms, 3), real),
        "numbers": ((atoms,), jnp.int32),
        "atom_structure": ((atoms,), jnp.int32),
        "atom_mask": ((atoms,), jnp.bool_),
        "src": ((edges,), jnp.int32),
        "dst": ((edges,), jnp.int32),
        "image": ((edges, 3), jnp.int32),
        "edge_mask": ((edges,), jnp.bool_),
        "cell": ((1, 3, 3), real),
        "pbc": ((1, 3), jnp.bool_),
        "structure_mask": ((1,), jnp.bool_),
        "charge": ((1,), jnp.int32),
        "spin": ((1,), jnp.int32),
        "dataset": ((1,), jnp.int32),
    }
    arguments = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes.items()}
    return bytes(jax_export.export(jax.jit(run), platforms=PLATFORMS)(arguments).serialize())
