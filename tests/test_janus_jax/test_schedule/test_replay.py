"""Validator, simulator, lowering and footprint against a replay that shares nothing with them.

They all ask `dependencies.needs`, so that an error there is invisible to tests that compare them with each other.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_jax.errors import ScheduleError
from janus_jax.phases import Memory, Phases
from janus_jax.schedule import NAMES, PhaseTimes, Sizes, make, simulate, validate
from janus_jax.schedule.footprint import footprint
from janus_jax.schedule.lowering import timed
from tests.test_janus_jax.test_schedule.replay import READS, Refused, Replay, bytes_after

WHOLE = st.integers(1, 9).map(float)
"""Times in whole numbers, so that sums are exact and equal times really are."""


@st.composite
def cases(draw):
    """Arguments of `built`."""
    name, p, n = draw(st.sampled_from(NAMES)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    fe, ff, bft, bfr, beh, bew = (draw(WHOLE) for _ in range(6))
    stage, micro = ([float(draw(st.integers(1, 3))) for _ in range(k)] for k in (p, n))
    option = {"unit": draw(st.integers(1, 12))} if name == "wavek" else {}
    if name == "split":
        option = {"cap": draw(st.integers(1, 12)), "trials": 2}
    return name, p, n, (fe, ff, bft, bfr, beh, bew), stage, micro, option


def built(case):
    """(schedule, times of `simulate`, the same as a function)."""
    name, p, n, (fe, ff, bft, bfr, beh, bew), stage, micro, option = case
    phases = {"FE": fe, "FF": ff, "BF": bft + bfr, "BE": beh + bew}
    times = PhaseTimes(phases, {"BFt": bft, "BEh": beh}, stage=tuple(stage), micro=tuple(micro))
    of = {**phases, "FE*": fe, "BFt": bft, "BFr": bfr, "BEh": beh, "BEw": bew}
    return make(name, p, n, times=times, **option), times, lambda op, s, m: of[op] * stage[s] * micro[m]


def test_phases_read_what_the_table_says():
    """From the programs: a phase reads values that the phase before it in the table kept, and of no later one."""

    def stage(params, h, x, constants):
        return jnp.tanh(h @ params["w"]) * jnp.sin(x @ params["v"]) @ params["u"]

    params = {name: jnp.ones((3, 3)) for name in "wvu"}
    arguments = params, jnp.ones((4, 3)), jnp.ones((4, 3)), ()
    for table, part, split in (("whole", "both", False), ("split", "both", True),
                               ("again", "energy", False), ("again", "forces", False)):  # fmt: skip
        cut = Phases(stage, Memory(repeat_intensity=0), split=split, part=part).at(*arguments)
        kept: dict = {}
        for step in cut:
            name = "FE*" if part == "forces" and step.name == "FE" else step.name
            found = {kept[v] for v in step.program.reads(cut.trace) if v in kept}
            allowed, reach = set(), list(READS[table][name])
            while reach:
                allowed.add(phase := reach.pop())
                reach += READS[table][phase]
            assert set(READS[table][name]) <= found <= allowed, (table, name, found)
            kept |= dict.fromkeys(step.program.keeps, name)


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([0.0, 1.0, 3.0]), st.booleans())
def test_times_and_counts_are_those_of_the_replay(case, transfer, blocking):
    schedule, times, duration = built(case)
    validate(schedule)
    replay = Replay(schedule, duration, transfer, blocking=blocking)
    found = simulate(schedule, times, transfer, blocking=blocking)
    until = {"FE": ("BE", "BEw"), "FE*": ("BF",), "FF": ("BF", "BFr"), "BF": ("BE",), "BFr": ("BEw",)}
    for k in range(len(schedule.devices)):
        np.testing.assert_array_equal(found.start[k], replay.start[k])
        np.testing.assert_array_equal(found.end[k], replay.end[k])
        assert found.busy[k] == sum(duration(*phase) for phase in replay.phases[k].values())
        assert found.inflight[k] == replay.inflight(k)
        assert found.peak_memory[k] == replay.units(k, until)
    if not transfer:
        for key, (start, end, device) in timed(schedule, times).items():
            position = next(p for p, phase in replay.phases[device].items() if phase == key)
            if not blocking:
                assert (start, end) == (replay.start[device][position], replay.end[device][position])


@settings(max_examples=20, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_bytes_are_those_of_the_replay(case, random):
    schedule, _, _ = built(case)
    p = schedule.stages
    ops = ("FE", "FE*", "FF", "BF", "BFt", "BFr", "BE", "BEh", "BEw")
    held = {(op, s): float(random.randrange(0, 1000)) for op in ops for s in range(p)}
    messages = {(way, v): float(random.randrange(1, 1000)) for way in ("activation", "gradient") for v in range(2 * p)}
    loaded = tuple(float(random.randrange(1, 1000)) for _ in schedule.devices)
    curves = footprint(schedule, Sizes(held, messages, loaded))
    letters = {(way[0].upper(), v): size for (way, v), size in messages.items()}
    for k, curve in enumerate(curves):
        np.testing.assert_array_equal(curve, bytes_after(schedule, k, held, letters, loaded[k]))


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_the_validator_accepts_what_can_be_replayed_and_nothing_else(case, data):
    """Two instructions of a device change places: whether that still works is for the replay to say."""
    schedule, _, duration = built(case)
    device = data.draw(st.integers(0, len(schedule.devices) - 1))
    a = data.draw(st.integers(0, len(schedule.devices[device]) - 3))
    b = data.draw(st.integers(a + 1, min(a + 6, len(schedule.devices[device]) - 2)))
    assert_alike(swapped(schedule, device, a, b), duration)


@pytest.mark.parametrize("name", NAMES)
def test_the_validator_and_the_replay_agree_on_every_swap(name):
    schedule = make(name, 2, 2, **({"trials": 0} if name == "split" else {}))
    for device, instructions in enumerate(schedule.devices):
        for a, b in itertools.combinations(range(len(instructions)), 2):
            if b - a < 9:
                assert_alike(swapped(schedule, device, a, b), lambda *_: 1.0)


def swapped(schedule, device, a, b):
    instructions = list(schedule.devices[device])
    instructions[a], instructions[b] = instructions[b], instructions[a]
    devices = list(schedule.devices)
    devices[device] = tuple(instructions)
    return schedule.replace(devices=tuple(devices))


def assert_alike(schedule, duration):
    try:
        Replay(schedule, duration)
    except Refused:
        with pytest.raises(ScheduleError):
            validate(schedule)
    else:
        validate(schedule)
