"""The built-in recipe learns water: held-out trajectories, a shortened run."""

from janus_jax.train import config, run


def test_force_error_on_other_trajectories_is_below_60(tmp_path):
    # The whole recipe (600 steps) is what `make demo` runs; its figures are in benchmarks/results.
    result = run.run(config.load(None, ["steps=250", f"output={tmp_path / 'run'}", "tracking.report=false"]))
    test = result.figures["test"]
    assert test["structures"] >= 60
    assert test["forces_mae_meV_per_angstrom"] < 60
    assert test["energy_mae_meV_per_atom"] < 20
    assert result.figures["compilations"] == 1
