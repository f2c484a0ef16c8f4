"""First-order schedules adapted to second-order training, as the paper compares with (sections 5.1, B.1).

FE is run again before FF. `gpipe_2nd` and `1f1b_2nd` put the 2P virtual stages on P devices in order, two
each: half of the devices hold energy stages, the other half force stages (with P odd, the middle one
holds one of each). `hanayo_2nd` is one wave (W = 1, S = 2P): folded like SymFold, but without reuse.
"""

from collections.abc import Iterator

from janus_jax.schedule.instructions import Schedule, folded, stage_of
from janus_jax.schedule.lowering import computations, lower
from janus_jax.schedule.passes import symfold


def _contiguous(stages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Devices of the energy and of the force stages with virtual stage v on device v // 2."""
    return tuple(s // 2 for s in range(stages)), tuple((2 * stages - 1 - s) // 2 for s in range(stages))


def _block(device: int, stages: int, micro: int, *, forward: bool) -> Iterator[tuple[str, int, int]]:
    """What a device does for one micro-batch in one direction."""
    virtual = (2 * device, 2 * device + 1)
    for v in virtual if forward else virtual[::-1]:
        stage, kind = stage_of(v, stages)
        if not forward:
            yield f"B{kind}", stage, micro
        elif kind == "E":
            yield "FE", stage, micro
        else:
            yield "FE", stage, micro  # again: the activations are elsewhere
            yield "FF", stage, micro


def _contiguous_schedule(name: str, stages: int, micro_batches: int, warm_up) -> Schedule:
    order = []
    for device in range(stages):
        ahead = min(micro_batches, warm_up(device))
        turns = [(True, m) for m in range(ahead)]
        for m in range(micro_batches):
            turns.append((False, m))
            if ahead + m < micro_batches:
                turns.append((True, ahead + m))
        order.append([key for forward, m in turns for key in _block(device, stages, m, forward=forward)])
    return lower(computations(name, order, micro_batches, *_contiguous(stages), recompute=True))


def gpipe_2nd(stages: int, micro_batches: int) -> Schedule:
    """All forward, then all backward."""
    return _contiguous_schedule("gpipe_2nd", stages, micro_batches, lambda device: micro_batches)


def one_f_one_b_2nd(stages: int, micro_batches: int) -> Schedule:
    """Device d starts with P - d forward blocks, then one backward and one forward block take turns."""
    return _contiguous_schedule("1f1b_2nd", stages, micro_batches, lambda device: stages - device)


def hanayo_2nd(stages: int, micro_batches: int) -> Schedule:
    """SymFold's order with FE run again before FF."""
    base = symfold(stages, micro_batches)
    order = [[again for i in device for again in (i._replace(op="FE"), i)[i.op != "FF" :]] for device in base.compute()]
    place = folded(stages)
    return lower(computations("hanayo_2nd", order, micro_batches, place, place, recompute=True))
