"""What lives on the devices during a step: no more than the schedule says, nothing after its last use."""

import itertools

import jax
import numpy as np
import pytest

from janus_jax.schedule import NAMES, Sizes, footprint, make, simulate
from janus_jax.schedule.order import global_order
from janus_jax.schedule.times import TYPICAL
from tests.test_janus_jax.test_runtime.conftest import pipeline


def live(devices) -> dict:
    """Bytes by device, each buffer once."""
    found = dict.fromkeys(devices, 0)
    seen = set()
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            if shard.device in found:
                key = shard.data.unsafe_buffer_pointer()
                if (shard.device, key) not in seen:
                    seen.add((shard.device, key))
                    found[shard.device] += shard.data.nbytes
    return found


@pytest.mark.parametrize(("name", "mode"), [
    ("split", "keep"), ("wavek", "rebuild"), ("1f1b_2nd", "keep"), ("hanayo_2nd", "rebuild_forces"),
])  # fmt: skip
def test_live_bytes_stay_below_the_schedules_curve(one, name, mode):
    trainer = pipeline(one.model, 2, 1, name, memory=mode)
    state = trainer.init(one.model)
    trainer.step(state, *one.batches[0])  # constants are made, programs are ready
    curves = footprint(trainer.schedule, trainer.sizes(one.batches[0][0][0]))
    params, batch = trainer.stage_params(state), trainer.batch(*one.batches[0])
    devices = list(trainer.layout.devices.flat)
    before, worst = live(devices), []

    def observe(step, rank, position, instruction):
        gradients = sum(a.nbytes for (r, _, _), sums in step.gradient.items() if r == rank for a in sums)
        jax.block_until_ready(jax.tree.leaves((step.inbox, step.gradient)))
        here = live(devices)[devices[rank]] - before[devices[rank]] - gradients
        worst.append((here - 1.05 * curves[rank][position] - 200, str(instruction), here, curves[rank][position]))

    done = trainer.executor.run(params, batch, observe)
    assert max(worst)[0] <= 0, max(worst)
    assert max(entry[2] for entry in worst) > 0.5 * max(curve.max() for curve in curves)  # the curve means something
    jax.block_until_ready(jax.tree.leaves(done.gradient))
    done.gradient.clear()
    done.terms.clear()
    done.done = None
    assert max(live(devices)[d] - before[d] for d in devices) < 200


@pytest.mark.parametrize("name", NAMES)
def test_the_footprint_ends_empty_and_follows_the_schedule(name):
    schedule = make(name, 3, 7)
    ops = ("FE", "FE*", "FF", "BF", "BFt", "BFr", "BE", "BEh", "BEw")
    last = {"BE", "BEw"} | ({"BF"} if schedule.recompute else set())
    held = {(op, s): 0.0 if op in last else 1.0 for op in ops for s in range(3)}
    messages = {(kind, v): 0.25 for kind in ("activation", "gradient") for v in range(6)}
    curves = footprint(schedule, Sizes(held, messages, (0.5,) * 3))
    assert all(curve[-1] == 0 for curve in curves)
    assert all((curve >= 0).all() for curve in curves)
    timeline = simulate(schedule, TYPICAL, sizes=Sizes(held, messages, (0.5,) * 3))
    np.testing.assert_array_equal(timeline.peak_memory, [curve.max() for curve in curves])
    if not schedule.recompute:
        plain = footprint(schedule, Sizes(held, dict.fromkeys(messages, 0.0)))
        assert [curve.max() for curve in plain] <= list(timeline.inflight)


@pytest.mark.parametrize("name", NAMES)
def test_the_global_order_keeps_each_devices_own_and_pairs_transfers(name):
    schedule = make(name, 4, 6)
    order = global_order(schedule)
    for device, instructions in enumerate(schedule.devices):
        assert [(p, i) for d, p, i in order if d == device] == list(enumerate(instructions))
    for (_, _, a), (_, _, b) in itertools.pairwise(order):
        assert (a.op[0] == "S") == (b.op[0] == "R"), (a, b)


def test_split_holds_no_more_than_wavek():
    """Residuals in flight at equal N, cap P against unit P."""
    ops = ("FE", "FF", "BF", "BFt", "BFr", "BE", "BEh", "BEw")
    sizes = {"FE": 1.0, "FF": 2.0, "BF": 2.0, "BFt": 2.0, "BFr": 2.0, "BEh": 1.5, "BE": 0.0, "BEw": 0.0}
    held = {(op, s): sizes[op] for op in ops for s in range(4)}
    none = {(kind, v): 0.0 for kind in ("activation", "gradient") for v in range(8)}
    peaks = [
        max(curve.max() for curve in footprint(schedule, Sizes(held, none)))
        for schedule in (make("split", 4, 16, cap=4, trials=50), make("wavek", 4, 16, unit=4))
    ]
    assert peaks[0] <= peaks[1]
