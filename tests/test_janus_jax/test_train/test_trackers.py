"""Numbers on their way out: files that survive a kill, CSV columns, the terminal, Weights & Biases."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

from janus_jax.errors import MissingPackageError
from janus_jax.progress import Steps
from janus_jax.train.console import Console
from janus_jax.train.trackers import Csv, JsonLines, WeightsAndBiases, read_rows

TRAIN = {
    "train_loss": 1.5,
    "train_energy_mae_meV_per_atom": 2.0,
    "train_forces_mae_meV_per_angstrom": 3.0,
    "atoms_per_s": 4.0,
}
VALIDATION = {
    "validation_loss": 1.0,
    "validation_best": 1.0,
    "validation_energy_mae_meV_per_atom": 2.5,
    "validation_forces_mae_meV_per_angstrom": 30.5,
}


def test_rows_after_the_resumed_step_and_half_written_ones_are_dropped(tmp_path):
    first = JsonLines(tmp_path / "m.jsonl")
    for step in (1, 2, 3):
        first.log(step, {"a": float("nan") if step == 1 else 1.0})
    first.close()
    with open(tmp_path / "m.jsonl", "a") as file:
        file.write('{"step": 4, "a')
    second = JsonLines(tmp_path / "m.jsonl", after=2)
    second.log(3, {"a": 5.0})
    second.close()
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "a": None}, {"step": 2, "a": 1.0}, {"step": 3, "a": 5.0}]


def test_csv_has_one_file_a_kind_and_goes_on_after_a_resume(tmp_path):
    table = Csv(tmp_path)
    for step in (1, 2, 3):
        table.log(step, TRAIN)
    table.log(3, VALIDATION)
    table.close()
    with open(tmp_path / "train.csv", "a") as file:
        file.write("4,1.5")
    table = Csv(tmp_path, after=2)
    table.log(3, {**TRAIN, "train_loss": 9.0, "new": 1.0})
    table.close()
    rows = [line.split(",") for line in (tmp_path / "train.csv").read_text().splitlines()]
    assert rows[0] == ["step", *TRAIN, "new"]  # no figure is dropped because the first row had it not
    assert [[*row[:2], row[-1]] for row in rows[1:]] == [["1", "1.5", ""], ["2", "1.5", ""], ["3", "9.0", "1.0"]]
    assert {len(row) for row in rows} == {len(TRAIN) + 2}
    assert len((tmp_path / "validation.csv").read_text().splitlines()) == 1  # step 3 is done again


def test_plain_output_has_lines_and_a_terminal_a_table():
    plain = io.StringIO()
    console = Console(100, every=10, stream=plain)
    for step in range(1, 21):
        console.log(step, TRAIN)
    console.log(20, VALIDATION)
    console.close()
    lines = plain.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["10/100", "20/100", "20"]
    assert "F 3.00 meV/Å" in lines[0]  # by the name of the validation's
    assert "F 30.50 meV/Å  best so far" in lines[-1]
    assert "s left" in lines[1]


def lines_at(width: int, monkeypatch, show) -> list[str]:
    """What a terminal of this width shows last, without colours; `show` writes to the stream given to it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    show(stream)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    return re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n", plain)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_a_table_of_validations_and_times_whole(width, monkeypatch):
    def show(stream):
        console = Console(12000, every=10, stream=stream)
        assert console.live is not None
        for step in range(11001, 11004):
            console.log(step, TRAIN | {"train_loss": 12345.678, "train_forces_mae_meV_per_angstrom": 12345.6})
        console.log(11003, VALIDATION)
        console.close()

    lines = lines_at(width, monkeypatch, show)
    text = " ".join(lines)
    assert re.search(r"11,003/12,000 .* \d:\d\d:\d\d elapsed, [-\d]:[-\d]{2}:[-\d]{2} left", text)
    assert "…" not in text
    assert "F, meV/Å" in text
    assert "best so far" in text
    assert max(map(len, lines)) <= width


def test_a_terminal_of_dynamics_shows_times_whole(monkeypatch):
    def show(stream):
        with Steps("step", 20000, 19000, stream=stream) as shown:
            assert shown.live
            shown(19500, "300 K, 1.23e+03 steps/s, 1.23e+06 atoms x steps/s, 53.2 ns/day, and more that does not fit")

    text = " ".join(lines_at(80, monkeypatch, show))
    assert re.search(r"19,500/20,000 .* \d:\d\d:\d\d elapsed, [-\d]:[-\d]{2}:[-\d]{2} left", text)
    assert "53.2 ns/day" in text


def test_without_a_terminal_long_work_says_now_and_then_where_it_is(monkeypatch):
    stream = io.StringIO()
    clock = iter([0.0, 10.0, 40.0, 50.0])
    monkeypatch.setattr("janus_jax.progress.time.perf_counter", lambda: next(clock))
    with Steps("step", 100, 20, stream=stream) as shown:
        for done in (30, 60, 70):
            shown(done, "300 K")
    assert stream.getvalue() == "step 60/100  300 K  40 s left\n"


def test_weights_and_biases_gets_the_numbers_and_continues_its_run(tmp_path, monkeypatch):
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "wandb", None)
        with pytest.raises(MissingPackageError, match=r"janus-jax\[wandb\]"):
            WeightsAndBiases("p", tmp_path, {})
    calls = []

    def init(**settings):
        calls.append(settings)
        return SimpleNamespace(id="abc", log=lambda n, step: calls.append((step, n)), finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for _ in range(2):
        tracker = WeightsAndBiases("p", tmp_path, {"steps": 3})
        tracker.log(1, {"a": 2.0})
        tracker.close()
    assert [call["id"] for call in calls if isinstance(call, dict)] == [None, "abc"]
    assert (1, {"a": 2.0}) in calls
    assert json.dumps(calls[0]["config"]) == '{"steps": 3}'
