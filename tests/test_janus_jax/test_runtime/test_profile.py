"""Measured timelines, tuning, plans and balance."""

import itertools
import json

import jax
import numpy as np
import pytest

from janus_jax import schedule as schedules
from janus_jax.cli.main import main
from janus_jax.cli.plan import show
from janus_jax.errors import ScheduleError
from janus_jax.phases.cost import flops
from janus_jax.runtime import balance
from janus_jax.runtime.profile import Recorder
from janus_jax.runtime.tune import tune
from janus_jax.schedule.instructions import COMPUTE
from tests.test_janus_jax.test_runtime.conftest import pipeline


@pytest.mark.parametrize("name", ["split", "1f1b_2nd"])
def test_a_timeline_is_in_order_and_foretold(one, name):
    trainer = pipeline(one.model, 2, 1, name)
    state = trainer.init(one.model)
    trainer.step(state, *one.batches[0])
    record = Recorder(trainer.executor)
    trainer.step(state, *one.batches[0], record)
    timeline = record.timeline()
    simulated = schedules.simulate(trainer.schedule, timeline.times)
    for device, instructions in enumerate(trainer.schedule.devices):
        chosen = [k for k, i in enumerate(instructions) if i.op in COMPUTE]
        start, end = timeline.start[device][chosen], timeline.end[device][chosen]
        assert (end >= start).all()
        assert (start[1:] >= end[:-1]).all()
    compute = [(d, p) for d, p, i in trainer.schedule if i.op in COMPUTE]
    starts = np.array([[line.start[d][p] for d, p in compute] for line in (timeline, simulated)])
    ranks = starts.argsort(1).argsort(1)
    assert np.corrcoef(ranks)[0, 1] > 0.8  # over all devices; a device in another order or of another clock has less
    assert 0 <= timeline.bubble < 1
    ops = {i.op for device in trainer.schedule.compute() for i in device} - {"FE"}
    assert {op for op, _ in timeline.times.table} >= ops
    assert simulated.makespan > 0
    assert "<svg" in schedules.svg(timeline)
    assert json.loads(schedules.chrome_trace(timeline, 1e6))["traceEvents"]


def test_tuning_bounds_memory_and_keeps_the_programs(one):
    trainer = pipeline(one.model, 2, 1, "split")
    state = trainer.init(one.model)
    chosen, figures = tune(trainer, state, *one.batches[0], "split")
    compiled = trainer.compilations()
    assert figures["cap"] in {row["value"] for row in figures["simulated"]}
    assert chosen.compilations() == compiled
    least = min(row["memory"] for row in figures["simulated"])
    _, figures = tune(trainer, state, *one.batches[0], "split", 1.01 * least)
    assert [row["value"] for row in figures["simulated"] if row["fits"]] == [figures["cap"]]
    with pytest.raises(ScheduleError, match="nothing fits into"):
        tune(trainer, state, *one.batches[0], "split", 0.5 * least)
    with pytest.raises(ScheduleError, match="symfold has nothing to tune"):
        tune(trainer, state, *one.batches[0], "symfold")


@pytest.mark.parametrize(("cost", "geometry", "stages", "expected"), [
    ([1, 1, 1, 1], 0, 2, (2, 2)), ([3, 1, 1, 1], 0, 2, (1, 3)), ([1, 1, 1, 4], 0.5, 3, (1, 2, 1)),
    ([1] * 6, 1, 4, (1, 1, 2, 2)),
])  # fmt: skip
def test_partition(cost, geometry, stages, expected):
    found = balance.partition(np.array(cost, float), float(geometry), stages)
    borders = np.cumsum((0, *found))
    best = max(sum(cost[a:b]) for a, b in itertools.pairwise(borders))
    wanted = np.cumsum((0, *expected))
    assert sum(found) == len(cost)
    assert best == max(sum(cost[a:b]) for a, b in itertools.pairwise(wanted))


def test_blocks_are_balanced_by_counted_cost(one):
    assert balance.blocks(one.model, 1) == (4,)
    assert balance.blocks(one.model, 4) == (1, 1, 1, 1)
    assert balance.blocks(one.model, 2) == (2, 2)
    cost, geometry = balance.block_costs(one.model)
    pair = balance.stage_costs(one.model, [2, 2])
    np.testing.assert_allclose(pair, [geometry + cost[:2].sum(), geometry + cost[2:].sum()], rtol=0.02)
    assert flops


TINY = ["model={num_layers: 4, lmax: 1, channels: 8, hidden_channels: 8, edge_channels: 8, num_basis: 8}",
        "batch={atoms: 64, micro_batches: 8}", "mesh={pipe: 4, data: 2, shard_optimizer: true}"]  # fmt: skip


def test_plan_counts_what_a_trainer_has(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert main(["plan", *TINY, "--neighbors", "20", "--json", "--times", "FE=1,FF=2,BF=4,BE=2"]) == 0
    monkeypatch.delenv("FORCE_COLOR")
    out = capsys.readouterr()
    figures = json.loads(out.out)
    for text in ("elapsed", "making the schedule", "tracing the phases of the next one", "with these times"):
        assert text in out.err  # it takes a while, and shows that it works
    assert figures["blocks"] == [1, 1, 1, 1]
    assert figures["capacity"]["edges"] == 1280
    assert figures["atoms_per_s"] == pytest.approx(512 / figures["step_s"])
    assert 0 < figures["bubble"] < 0.5
    assert figures["shares"] == "BFt 51 % of BF, BEh 50 % of BE"
    assert list(figures["bubble_with_other_shares"]) == ["BFt 25 % of BF, BEh 55 % of BE"]
    assert figures["transfers"] == 4 * 3 * 4  # four kinds, three borders, four micro-batches a data rank
    own = sum(row["parameters"] for row in figures["device_rows"])
    assert own >= 4 * figures["parameters"]  # the shared geometry is held by all
    assert (tmp_path / "plan.png").stat().st_size > 10000
    del figures["step_s"], figures["atoms_per_s"]
    show(figures)
    text = capsys.readouterr().out
    assert "no throughput without times" in text
    assert "(simulated; BFt 51 % of BF, BEh 50 % of BE)" in " ".join(text.split())
    assert "bubble if BFt 25 % of BF, BEh 55 % of BE: " in text
    assert "GiB on each device" in text
    one = TINY[0].replace("num_layers: 4", "num_layers: 1")
    assert main(["plan", one, "batch.atoms=32", "--json", "--plot", ""]) == 0  # one stage, as the defaults have
    assert json.loads(capsys.readouterr().out)["bubble"] == pytest.approx(0, abs=1e-9)
    assert main(["plan", "mesh.pipe=7"]) == 2
    assert "the model has 2 blocks" in capsys.readouterr().err


def test_plan_of_the_paper_models_needs_no_device(monkeypatch, tmp_path):
    from janus_jax.runtime.plan import plan
    from janus_jax.train import config

    wide = config.load(
        "configs/train/esen_220m.yaml",
        ["model.channels=16", "model.hidden_channels=16", "model.lmax=1", "model.mmax=1"],
    )
    found = plan(wide, neighbors=30.0)
    assert found.figures["blocks"] == [1] * 8
    assert wide.batch.atoms * wide.batch.micro_batches == 12800
    assert 0 < found.figures["bubble"] < 0.5
    assert config.load("configs/train/esen_100m.yaml").model.num_layers == 16
    assert jax.process_count() == 1
