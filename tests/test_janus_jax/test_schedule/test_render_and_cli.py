"""Pictures and the command line of schedules."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from janus_jax.cli.main import main
from janus_jax.schedule import chrome_trace, gantt, make, paper, simulate, svg, tune

TIMES = paper("UMA-1.2B")
ARGUMENTS = ["--stages", "4", "--microbatches", "12"]


@pytest.fixture(scope="module")
def timeline():
    return simulate(make("split", 4, 8, cap=8, times=TIMES, trials=20), TIMES, 0.05)


def test_pictures_show_every_computation(timeline):
    count = sum(len(device) for device in timeline.schedule.compute())
    root = ElementTree.fromstring(svg(timeline))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}title")) == count
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    assert sum(event["ph"] == "X" and "args" in event for event in events) == count
    starts, ends = ({e["id"] for e in events if e["ph"] == kind} for kind in "sf")
    assert starts == ends
    assert starts
    lines = gantt(timeline, width=80).splitlines()
    assert [len(line) for line in lines[:4]] == [84] * 4
    assert set("eftrhw") <= set("".join(lines[:4]))


def test_show_prints_figures_and_writes_files(tmp_path, capsys):
    files = ["--svg", str(tmp_path / "a.svg"), "--trace", str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv")]
    command = ["schedule", "show", "--schedule", "split", *ARGUMENTS, "--cap", "8", "--trials", "50"]
    times = ["--times", "FE=1,FF=1.43,BF=3.12,BE=1.66", "--split", "BFt=1,BEh=0.55", "--transfer", "0.05"]
    assert main([*command, *times, *files, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["valid"]
    assert 0 < figures["bubble"] < 0.2
    assert figures["lower_bound"] <= figures["makespan"]
    assert figures["peak_inflight"] <= 8
    assert all((tmp_path / name).stat().st_size > 500 for name in ("a.svg", "a.json", "a.csv"))
    assert figures["shares"] == "BFt 32 % of BF, BEh 33 % of BE"
    assert not figures["with_other_shares"]  # given by the user
    assert main(command) == 0
    words = capsys.readouterr().out.split("a device; ")[1]  # the shares of our phases, then those of BFt = FE
    assert re.match(r"BFt 51 % of BF, BEh 50 % of BE\nsplit cap=8 if BFt 37 % of BF, BEh 55 % of BE: bubble \d", words)


def test_compare_and_tune(capsys):
    assert main(["schedule", "compare", *ARGUMENTS, "--model", "eSEN-100M", "--trials", "50", "--json"]) == 0
    text = capsys.readouterr().out
    splits = [row for row in json.loads(text)["schedules"] if row["schedule"] == "split cap=8"]
    assert [row["shares"] for row in splits] == ["BFt 30 % of BF, BEh 55 % of BE", "BFt 51 % of BF, BEh 50 % of BE"]
    assert all(0 < row["bubble"] < 0.1 for row in splits)
    rows = {row["schedule"].split()[0]: row for row in json.loads(text)["schedules"]}
    assert set(rows) == {"gpipe_2nd", "1f1b_2nd", "hanayo_2nd", "symfold", "wavek", "split"}
    assert rows["split"]["speedup_over_1f1b_2nd"] > rows["wavek"]["speedup_over_1f1b_2nd"] > 1.2
    assert main(["schedule", "tune", "--schedule", "wavek", *ARGUMENTS, "--memory", "17", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["memory"] <= 17
    assert any(not choice["fits"] for choice in found["tried"])
    assert found["best"]["makespan"] == min(c["makespan"] for c in found["tried"] if c["fits"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--schedule", "wavk"], "Did you mean 'wavek'"),
        (["show", "--schedule", "symfold", "--times", "FE=1"], "FF, BF, BE missing"),
        (["show", "--schedule", "symfold", "--times", "FE:1"], "'FE:1' is not of the form"),
        (["show", "--schedule", "symfold", "--transfer", "-1"], "--transfer is -1; it must be a finite"),
        (["compare", "--transfer", "nan"], "--transfer is nan; it must be a finite number, not below 0"),
        (["tune", "--memory", "inf"], "--memory is inf; it must be"),
        (["tune", "--memory", "nan"], "--memory is nan; it must be"),
        (["tune", "--sizes", "FE=nan,FF=1,BF=1"], "FE=nan: must be a finite number"),
        (["show", "--times", "FE=-1,FF=1,BF=1,BE=1"], "FE=-1: must be a finite number"),
        (["tune", "--schedule", "symfold"], "nothing to tune"),
        (["tune", "--schedule", "wavek", "--memory", "1"], "nothing fits into 1; wavek needs the least with unit 4: "),
    ],
)
def test_bad_parameters_get_a_sentence(arguments, words, capsys):
    assert main(["schedule", *arguments, *ARGUMENTS]) == 2
    out = capsys.readouterr()
    assert words in out.err
    assert "Traceback" not in out.err


def test_tuning_takes_the_fastest_that_fits():
    best, tried = tune("split", 2, 6, TIMES, trials=5)
    assert best.makespan == min(choice.makespan for choice in tried)
