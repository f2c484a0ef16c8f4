"""The model file: one `.npz` with the weights by name and a JSON description of everything else.

It holds all that prediction needs (architecture, cutoff, elements, reference energies, scale,
units) and loads without the training configuration.
"""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ase.data import chemical_symbols
from flax import nnx
from numpy.typing import DTypeLike

from janus_jax import __version__, storage
from janus_jax.errors import ModelFileError
from janus_jax.models import POTENTIALS, convert
from janus_jax.models.potential import Potential

FORMAT = 2
HEADER = "janus_model"
MODEL_FILE = "model.janus"


def _from_1(header: dict[str, Any]) -> dict[str, Any]:
    """Format 1 said nothing about data and versions, and gave elements and cutoff only inside other entries."""
    summary = header["summary"]
    return {
        **header,
        "format": 2,
        "cutoff_angstrom": header["model"]["cutoff_angstrom"],
        "elements": [chemical_symbols[int(number)] for number in sorted(header["references_eV"], key=int)],
        "data_hash": None,
        "versions": {},
        "summary": summary,
    }


MIGRATIONS = {1: _from_1}
"""What brings a header from format n to n + 1."""


def save(
    path: str | os.PathLike,
    model: Potential,
    summary: dict[str, Any] | None = None,
    data_hash: str | None = None,
) -> None:
    """Write `model` to `path`.

    Args:
        summary: free-form JSON about its training.
        data_hash: of the data it was trained on.

    Raises:
        DiskFullError: no room; a file that was there is left as it was.
    """
    elements = [chemical_symbols[number] for number, _ in model.references]
    header = {
        "format": FORMAT,
        "model": model.config.model_dump(mode="json"),
        "scale": model.scale,
        "references_eV": {str(number): energy for number, energy in model.references},
        "elements": elements,
        "cutoff_angstrom": model.cutoff,
        "precision": str(model.dtype),
        "units": {"length": "angstrom", "energy": "eV", "forces": "eV/angstrom", "stress": "eV/angstrom^3"},
        "data_hash": data_hash,
        "versions": {"janus-jax": __version__} | {name: version(name) for name in ("jax", "flax", "numpy")},
        "summary": summary or {},
    }
    arrays = {HEADER: np.array(json.dumps(header)), **convert.save_state(model)}
    need = sum(np.asarray(array).nbytes for array in arrays.values())
    with storage.replacing(Path(path), need) as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def find(path: str | os.PathLike) -> Path:
    """The model file at `path`: the file itself, or the one inside a run folder.

    Raises:
        ModelFileError: there is none.
    """
    path = Path(path)
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.exists():
        missing = f"no {MODEL_FILE} in this folder; training writes it at its first validation"
        inside = missing if path.is_dir() else "no such file"
        raise ModelFileError(path, inside)
    return file


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """The header of a model file.

    Raises:
        ModelFileError: not a model file, damaged, or of a newer format.
    """
    return _open(find(path))[0]


def load(path: str | os.PathLike, dtype: DTypeLike | None = None) -> Potential:
    """The potential in a model file or run folder, in `dtype` (as stored if None).

    Raises:
        ModelFileError: not a model file, damaged, or of a newer format.
        StateMismatchError: the weights do not fit the stored architecture.
        ConfigError: the weights are float64 and JAX is in its 32-bit mode; give `dtype`, or JAX_ENABLE_X64=1.
    """
    header, weights = _open(find(path))
    if dtype is None:
        convert.check_precision(header["precision"])
    config_class, model_class = POTENTIALS[header["model"]["name"]]
    references = tuple(sorted((int(number), float(e)) for number, e in header["references_eV"].items()))
    config = config_class.model_validate(header["model"])
    abstract = nnx.eval_shape(
        lambda: model_class(config, rngs=nnx.Rngs(0), scale=header["scale"], references=references)
    )
    model = convert.load_state(abstract, weights)
    return model if dtype is None else convert.cast(model, dtype)


def _open(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if HEADER not in archive.files:
                raise ModelFileError(path, "not a janus-jax model file")
            header = json.loads(str(archive[HEADER]))
            weights = {name: archive[name] for name in archive.files if name != HEADER}
    except ModelFileError:
        raise
    except Exception as error:
        raise ModelFileError(path, f"not a janus-jax model file, or damaged ({type(error).__name__})") from error
    if header["format"] > FORMAT or header["model"]["name"] not in POTENTIALS:
        raise ModelFileError(path, f"written by a newer version (format {header['format']}, this one reads {FORMAT})")
    while header["format"] < FORMAT:
        header = MIGRATIONS[header["format"]](header)
    kinds = {str(array.dtype) for array in weights.values()}
    header["precision"] = "float64" if "float64" in kinds else "float32"
    return header, weights


def parameter_count(model: Potential) -> int:
    """Number of trainable numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
