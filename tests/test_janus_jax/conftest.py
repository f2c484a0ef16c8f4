"""Small files and settings for whole runs."""

import pytest
from ase.io import write

from janus_jax.data.sources import read_frames
from janus_jax.train import config

TINY = [
    "model={cutoff_angstrom: 3, num_layers: 1, channels: 8, hidden_channels: 8, edge_channels: 8, num_basis: 8}",
    "batch.atoms=64", "steps=8", "validate_every=4", "optimizer.warmup_steps=2", "optimizer.ema_decay=0.5",
    "tracking.tensorboard=false", "tracking.report=false",
    "optimizer.method=adamw",  # compiles faster; muon is tested in test_optimizer.py and by the water recipe
]  # fmt: skip


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Small files cut from the built-in set."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "validation", "test"):
        write(folder / f"{split}.xyz", read_frames(f"water:{split}")[:6], format="extxyz")
    return folder


@pytest.fixture(scope="session")
def tiny(files):
    """Overrides of a run of a few seconds; `tiny(folder, *changes)` makes its configuration."""

    def overrides(folder, *changes):
        sources = [f"data.{split}={files / split}.xyz" for split in ("train", "validation", "test")]
        return [*TINY, *sources, f"output={folder / 'run'}", *changes]

    def make(folder, *changes):
        return config.load(None, overrides(folder, *changes))

    make.overrides = overrides
    return make
