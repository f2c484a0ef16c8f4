"""What the cut promises, read off the traced programs: nothing twice, no parameter kept, few compilations."""

import jax
import numpy as np
import pytest

from janus_jax.phases import Memory, Phases
from janus_jax.phases.cost import is_view, nbytes
from janus_jax.phases.equations import variables
from janus_jax.testing import random_esen
from tests.test_janus_jax.test_phases.conftest import OPTIONS
from tests.test_janus_jax.test_phases.test_exact import MEMORIES, esen_case, plain, toy

CUTS = {}


def cut_of(case, memory, **options):
    """Cut once for each case and options."""
    key = case.function, repr(memory), repr(options)
    if key not in CUTS:
        CUTS[key] = _cut(case, memory, **options)
    return CUTS[key]


def _cut(case, memory, **options):
    return Phases(case.function, memory, **options).at(case.params, case.h, case.x, case.constants)


def constants(trace, params):
    """Variables that depend on parameters and literals alone."""
    known = set(params) | set(trace.consts)
    for eqn in trace.equations:
        if all(v in known for v in variables(eqn.invars)):
            known |= set(eqn.outvars)
    return known


def case_of(kind):
    return toy(plain) if kind == "toy" else esen_case(kind, np.float64)


@pytest.fixture(scope="module", params=["toy", 1], ids=str)
def case(request):
    return case_of(request.param)


@pytest.mark.parametrize(("kind", "split"), [("toy", True), ("toy", False), (0, True), (1, True), (2, True)])
def test_no_equation_runs_in_two_phases(kind, split):
    """But views and what depends on parameters alone: keeping those would store numbers twice."""
    cut = cut_of(case_of(kind), Memory(repeat_intensity=0.0), split=split)
    known = constants(cut.trace, cut.face.params)
    runs = {}
    for program in cut.programs:
        for index in program.equations:
            runs.setdefault(index, []).append(program.phases)
    twice = [cut.trace.equations[index] for index, phases in runs.items() if len(phases) > 1]
    assert [eqn for eqn in twice if not is_view(eqn) and not set(eqn.outvars) <= known] == []
    assert len(runs) > 50


def test_equal_equations_are_one(case):
    cut = cut_of(case, Memory(repeat_intensity=0.0))
    seen = [
        (str(e.primitive), str(e.invars), str(e.params), [(v.aval, v.aval.weak_type) for v in e.outvars].__repr__())
        for e in cut.trace.equations
        if not e.effects
    ]
    plain_ones = [key for key in seen if "jaxpr" not in key[2]]
    assert len(set(plain_ones)) == len(plain_ones)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_nothing_is_kept_twice_and_no_parameter(case, memory):
    if memory.budget_mib is not None and case.function is not plain:
        memory = Memory(budget_mib=1.0)
    cut = cut_of(case, memory)
    known = constants(cut.trace, cut.face.params)
    held = set()
    for program in cut.programs:
        assert not held & set(program.keeps), "made again although it was held"
        held = set(program.held)

    def root(v):
        index = cut.trace.producer.get(v)
        eqn = None if index is None else cut.trace.equations[index]
        same = eqn is not None and eqn.primitive.name in ("reshape", "squeeze", "expand_dims", "transpose", "copy")
        return root(eqn.invars[0]) if same else v

    for program in cut.programs:
        roots = [root(v) for v in program.held]
        assert len(set(roots)) == len(roots)
        assert not known & set(roots)


def test_held_arrays_are_distinct_and_the_bytes_reported():
    case = esen_case(1, np.float64)
    cut = cut_of(case, Memory(), compiler_options=OPTIONS)
    after = {}
    case.run(cut, after)
    stays = {cut.trace.number[v] for v in cut.face.stays}
    for step in cut:
        arrays = {k: a for k, a in after[step.name].items() if k not in stays}
        assert sum(a.nbytes for a in arrays.values()) == cut.held_bytes(step.program)
        features = [np.asarray(a) for a in arrays.values() if a.dtype == np.float64]  # indices may agree by chance
        contents = [np.sort(a.ravel()).tobytes() for a in features if np.ptp(a) > 0]
        assert len(set(contents)) == len(contents), step.name


def test_modes_keep_what_they_say():
    case = esen_case(1, np.float64)
    cuts = {name: cut_of(case, memory) for name, memory in MEMORIES.items() if name != "budget"}
    held = {name: [cut.held_bytes(program) for program in cut.programs] for name, cut in cuts.items()}
    features = case.h.nbytes
    assert held["rebuild"][0] == features
    assert held["rebuild"][1] == 2 * features  # h and ct
    assert held["rebuild_forces"][0] == held["cheap"][0]
    assert held["rebuild_forces"][1] <= held["cheap"][0] + features
    assert held["cheap"][1] < 0.6 * held["keep"][1]
    assert all(column[-1] == 0 for column in held.values())


def test_the_table_tells_what_is_repeated():
    case = esen_case(1, np.float64)
    lines = {line.split()[0]: line.split() for line in cut_of(case, Memory(mode="rebuild")).table().splitlines()}
    assert lines["phase"][1:4] == ["equations", "MFLOP", "repeated"]
    assert float(lines["FE"][3]) == 0
    assert float(lines["FF"][3]) > 30
    assert float(cut_of(case, Memory(repeat_intensity=0.0)).table().splitlines()[2].split()[3]) < 1


def test_a_budget_is_met():
    case = esen_case(1, np.float64)
    default = cut_of(case, Memory())
    peak = max(map(default.held_bytes, default.programs))
    cut = cut_of(case, Memory(repeat_intensity=0.0, budget_mib=1.02 * peak / 2**20))
    assert max(map(cut.held_bytes, cut.programs)) <= 1.02 * peak
    assert cut.memory.repeat_intensity > 0


def test_one_program_for_each_kind_phase_and_shape(compilations):
    from janus_jax.stages import Place, cut_model

    stages = cut_model(random_esen(num_layers=4), [1, 1, 1, 1])
    assert stages[1].function == stages[2].function
    assert len({stage.function for stage in stages}) == 3
    by_kind = {stage.function: Phases(stage.function, compiler_options=OPTIONS) for stage in stages}
    case = esen_case(1, np.float64)
    graph, _ = case.constants

    def run(stage):
        cut = by_kind[stage.function].at(stage.params, case.h, Place.of(graph), (graph, stage.fixed))
        jax.block_until_ready(case.__class__(**{**case.__dict__, "params": stage.params}).run(cut))
        return cut

    cut = run(stages[1])
    compiled = compilations()
    assert run(stages[2]) is cut
    run(stages[1])
    assert compilations() == compiled
    assert [step.run._cache_size() for step in cut] == [1] * 6


@pytest.fixture
def compilations():
    """Counts programs compiled or loaded since the start of the test."""
    count = []

    def listen(name, *_, **__):
        if name == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            count.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(count)
    jax.monitoring.unregister_event_duration_listener(listen)


def test_bytes_of_a_variable():
    cut = cut_of(toy(plain), Memory())
    assert nbytes(cut.face.arrives["FE"][0]) == 7 * 5 * 8


def test_what_can_be_done_early_is():
    """Everything new in BEh and BEw waits for dL/dh'; BFr takes the rest of the backward energy pass."""
    cut = cut_of(toy(plain), Memory(repeat_intensity=0.0))
    waits = set(cut.face.arrives["BEh"])
    for eqn in cut.trace.equations:
        if waits & set(variables(eqn.invars)):
            waits |= set(eqn.outvars)
    for name in ("BEh", "BEw"):
        program = cut[name].program
        new = [cut.trace.equations[i] for i in set(program.equations) - program.repeated]
        constant = constants(cut.trace, cut.face.params)
        assert all(waits & set(eqn.outvars) or set(eqn.outvars) <= constant or is_view(eqn) for eqn in new), name
    assert len(cut["BFr"].program.equations) > 10
