"""The built-in water set is what its documentation says."""

import numpy as np
import pytest

from janus_jax.data.sources import builtin, open_source, read_frames
from janus_jax.errors import DataError, UnknownNameError


def test_water_set_is_what_it_says():
    frames = read_frames("water")
    splits = {name: read_frames(f"water:{name}") for name in builtin.SPLITS}
    assert sum(map(len, splits.values())) == len(frames) >= 400
    assert [f.info["trajectory"] for f in frames] == [k // builtin.FRAMES_PER_TRAJECTORY for k in range(len(frames))]
    trajectories = {name: {frame.info["trajectory"] for frame in part} for name, part in splits.items()}
    assert not trajectories["train"] & (trajectories["test"] | trajectories["validation"])
    assert not trajectories["test"] & trajectories["validation"]
    assert {len(frame) // 3 for frame in frames} <= set(range(8, 17))
    assert len({len(f) for f in frames}) >= 3
    assert {f.info["temperature_kelvin"] for f in frames} == {300, 400, 500, 600}
    assert len({f.info["density_g_cm3"] for f in frames}) >= 3
    forces = np.concatenate([frame.get_forces() for frame in frames])
    assert 0.5 < np.sqrt((forces**2).mean()) < 2
    assert max(np.abs(frame.get_forces().sum(0)).max() for frame in frames) < 1e-3
    assert all(np.isfinite(frame.get_stress()).all() and frame.pbc.all() for frame in frames)
    assert builtin.SETS["water"].stat().st_size < 2.5e6
    isolated = builtin.isolated_atom_energies("water")
    binding = [frame.get_potential_energy() - sum(isolated[s] for s in frame.symbols) for frame in frames]
    per_molecule = np.array(binding) / [len(frame) / 3 for frame in frames]
    assert per_molecule.min() > -20
    assert per_molecule.max() < -5


def test_unknown_splits_and_files_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'tset'.*[Dd]id you mean 'test'"):
        open_source("water:tset")
    with pytest.raises(DataError, match="no such file; built-in sets are: water"):
        open_source(tmp_path / "none.xyz")
