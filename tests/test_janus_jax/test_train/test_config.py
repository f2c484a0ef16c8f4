"""Configuration: defaults, overrides, and errors that say what is wrong where."""

from pathlib import Path

import pytest

from janus_jax.errors import ConfigError
from janus_jax.train import config
from janus_jax.train.config import TrainConfig

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_water_recipe_spells_out_the_defaults():
    assert config.load(CONFIGS / "train" / "water.yaml") == TrainConfig()


@pytest.mark.parametrize("path", sorted((CONFIGS / "train").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_valid_and_round_trips(path, tmp_path):
    loaded = config.load(path)
    (tmp_path / "copy.yaml").write_text(config.dump(loaded))
    assert config.load(tmp_path / "copy.yaml") == loaded


def test_overrides_reach_nested_keys_and_keep_the_rest(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {channels: 16}\nsteps: 7\n")
    loaded = config.load(
        tmp_path / "a.yaml", ["model.num_layers=3", "data.test=null", "data.references={H: -1.5, O: -2}"]
    )
    assert (loaded.model.channels, loaded.model.num_layers, loaded.steps) == (16, 3, 7)
    assert loaded.data.test is None
    assert loaded.data.references == {"H": -1.5, "O": -2.0}
    assert hash(loaded.model) == hash(loaded.model.model_copy())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "optimizer.learning_rat=1",
            ["optimizer.learning_rat", "did you mean optimizer.learning_rate", "weight_decay"],
        ),
        ("stepz=1", ["stepz", "did you mean steps"]),
        ("model.mmax=3", ["model", "mmax is 3", "0 to lmax = 2"]),
        ("steps=0", ["steps", "greater than 0", "given: 0"]),
        ("precision=float16", ["precision", "float32", "float64"]),
        ("model.channels", ["'model.channels'", "dotted.key=value"]),
        ("steps.more=1", ["steps"]),
    ],
)
def test_errors_name_the_path_and_what_is_allowed(override, words):
    overrides = ["steps=5", override] if override.startswith("steps.") else [override]
    with pytest.raises(ConfigError) as caught:
        config.load(None, overrides)
    for word in words:
        assert word in str(caught.value)


def test_missing_and_malformed_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.yaml: no such"):
        config.load(tmp_path / "nowhere.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match="bad.yaml: not valid YAML"):
        config.load(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping"):
        config.load(tmp_path / "list.yaml")
