"""Configuration: defaults, overrides, and errors that say what is wrong where."""

from pathlib import Path

import pytest

from janus_jax import configuration
from janus_jax.errors import ConfigError
from janus_jax.train import config
from janus_jax.train.config import TrainConfig

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_water_recipe_spells_out_the_defaults():
    assert config.load(CONFIGS / "train" / "water.yaml") == TrainConfig()


@pytest.mark.parametrize("path", sorted((CONFIGS / "train").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_valid_and_round_trips(path, tmp_path):
    loaded = config.load(path)
    (tmp_path / "copy.yaml").write_text(configuration.dump(loaded))
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


def test_includes_are_merged_relative_to_their_file_and_later_values_win(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text("include: ../root.yaml\nmodel: {channels: 16}\nsteps: 5\n")
    (tmp_path / "root.yaml").write_text("model: {channels: 8, num_layers: 3}\nsteps: 1\nseed: 9\n")
    (tmp_path / "other.yaml").write_text("batch: {atoms: 77}\n")
    (tmp_path / "a.yaml").write_text("include: [sub/base.yaml, other.yaml]\nsteps: 6\n")
    loaded = config.load(tmp_path / "a.yaml", ["model.lmax=1"])
    assert (loaded.model.channels, loaded.model.num_layers, loaded.model.lmax) == (16, 3, 1)
    assert (loaded.steps, loaded.seed, loaded.batch.atoms) == (6, 9, 77)
    (tmp_path / "root.yaml").write_text("include: a.yaml\n")
    with pytest.raises(ConfigError, match=r"circle: a.yaml -> base.yaml -> root.yaml -> a.yaml"):
        config.load(tmp_path / "a.yaml")
    (tmp_path / "root.yaml").write_text("include: missing.yaml\n")
    with pytest.raises(ConfigError, match=r"missing.yaml: no such configuration file \(included by .*root.yaml"):
        config.load(tmp_path / "a.yaml")
    (tmp_path / "root.yaml").write_text("include: 3\n")
    with pytest.raises(ConfigError, match=r"root.yaml: include: expected a file name"):
        config.load(tmp_path / "a.yaml")


def test_numbers_in_scientific_notation_are_numbers_everywhere(tmp_path):
    (tmp_path / "a.yaml").write_text("optimizer: {schedule_arguments: {decay_rate: 1e-3}}\n")
    loaded = config.load(tmp_path / "a.yaml", ["optimizer.learning_rate=2e-3"])
    assert loaded.optimizer.schedule_arguments == {"decay_rate": 0.001}
    assert loaded.optimizer.learning_rate == 0.002


def test_the_template_is_the_water_recipe_with_a_comment_for_what_is_not_plain():
    text = configuration.template(TrainConfig())
    stored = (CONFIGS / "train" / "water.yaml").read_text()
    assert stored.partition("\n")[2] == text  # the first line says what it is
    assert "  atoms: 48  # A micro-batch is filled up to this many atoms" in text
    assert "one of mae, mse, huber" in text


def test_the_schema_describes_every_key():
    schema = TrainConfig.model_json_schema()

    def properties(node):
        for name, value in node.get("properties", {}).items():
            yield name, value
        for value in node.get("$defs", {}).values():
            yield from properties(value)

    names = dict(properties(schema))
    assert {"learning_rate", "cutoff_angstrom", "time_limit_minutes", "references"} <= set(names)
    assert names["patience"]["description"].startswith("Stop after this many validations")
    assert schema["additionalProperties"] is False


def test_data_of_ones_own_are_not_tested_on_water():
    loaded = config.load(None, ["data.train=mine.xyz"])
    assert (loaded.data.validation, loaded.data.test) == (0.1, None)
    assert config.load(None, ["data.train=[a.xyz, b.xyz]"]).data.train == ("a.xyz", "b.xyz")


def test_one_line_for_each_key_with_a_problem():
    with pytest.raises(ConfigError) as caught:
        config.load(None, ["data.validation=1.5", "loss.config_type_weights={a: -1}", "data.labels.energi=E"])
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in sorted(lines)] == [
        "data.labels.energi", "data.validation", "loss.config_type_weights.a"
    ]  # fmt: skip
    assert "did you mean data.labels.energy?" in str(caught.value)


def test_every_configuration_is_hashable():
    loaded = config.load(None, ["data.references={H: -1}", "loss.dataset_weights={a: 2}"])
    assert hash(loaded) == hash(loaded.model_copy())
    assert hash(loaded) != hash(TrainConfig())


def test_empty_sections_mean_defaults_and_keys_given_twice_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("data:\nsteps: 3\n")
    assert config.load(tmp_path / "a.yaml").data == TrainConfig().data
    assert config.load(tmp_path / "a.yaml", ["data.test=null"]).data.test is None
    (tmp_path / "a.yaml").write_text("steps: 3\nsteps: 4\n")
    with pytest.raises(ConfigError, match="'steps' is given twice"):
        config.load(tmp_path / "a.yaml")


def test_globs_need_no_quotes_within_an_override():
    assert config.load(None, ["data.train=*.xyz"]).data.train == "*.xyz"
