"""`janus-jax schedule show|compare|tune`."""

import argparse
from pathlib import Path
from typing import Any

from janus_jax.errors import ScheduleError


def numbers(text: str | None) -> dict[str, float]:
    """`FE=1,FF=1.43` as a mapping."""
    result = {}
    for word in (text or "").split(","):
        if not word.strip():
            continue
        key, equals, value = word.partition("=")
        try:
            result[key.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ScheduleError(f"{word!r} is not of the form FE=1; give times as FE=1,FF=1.43,BF=3.12,BE=1.66")
        if not 0 <= result[key.strip()] < float("inf"):
            raise ScheduleError(f"{word.strip()}: must be a finite number, not below 0")
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import schedule
    from janus_jax.schedule.times import TYPICAL, PhaseTimes

    if arguments.model is not None and arguments.times is not None:
        raise ScheduleError("give --times or --model, not both")
    times = schedule.paper(arguments.model) if arguments.model else TYPICAL
    if arguments.times or arguments.split:
        times = PhaseTimes(numbers(arguments.times) or times.phases, numbers(arguments.split))
    return {"show": _show, "compare": _compare, "tune": _tune}[arguments.action](arguments, times)


def _both(arguments, times) -> tuple:
    """The times, and with other shares of BF and BE unless the user gave the shares: bubbles depend on them."""
    if arguments.split:
        return (times,)
    others = (times.as_measured(), times.bft_is_fe())
    return (times, *(other for other in others if other.shares != times.shares))


def _one(arguments, times, name: str, **options):
    from janus_jax import schedule
    from janus_jax.schedule import lower_bound, simulate, validate

    search = {"trials": arguments.trials, "seed": arguments.seed} if name == "split" else {}
    made = schedule.make(name, arguments.stages, arguments.microbatches, times=times, **options, **search)
    validate(made)
    timeline = simulate(made, times, arguments.transfer, blocking=arguments.blocking)
    bound = lower_bound(arguments.stages, arguments.microbatches, times, options.get("cap"))
    figures = {
        "schedule": made.name,
        "shares": times.shares if made.split else "BF and BE are whole",
        "bubble": timeline.bubble,
        "makespan": timeline.makespan,
        "lower_bound": bound,
        "peak_inflight": int(timeline.inflight.max()),
        "valid": True,
        "parts": timeline.parts,
    }
    return made, timeline, figures


def _show(arguments, times) -> dict[str, Any]:
    from janus_jax.schedule import chrome_trace, gantt, svg, to_csv, to_text

    made, timeline, figures = _one(arguments, times, arguments.schedule, unit=arguments.unit, cap=arguments.cap)
    for path, text in ((arguments.svg, svg), (arguments.trace, chrome_trace)):
        if path:
            Path(path).write_text(text(timeline))
    if arguments.csv:
        Path(arguments.csv).write_text(to_csv(made))
    if arguments.text:
        Path(arguments.text).write_text(to_text(made))
    figures["gantt"] = gantt(timeline)
    if made.split:
        others = _both(arguments, times)[1:]
        figures["with_other_shares"] = [_one(arguments, o, arguments.schedule, cap=arguments.cap)[2] for o in others]
    return figures


def _compare(arguments, times) -> dict[str, Any]:
    from janus_jax.schedule import NAMES

    rows = []
    for name in NAMES:
        options = {"unit": arguments.unit} if name == "wavek" else {"cap": arguments.cap} if name == "split" else {}
        each = _both(arguments, times) if name == "split" else (times,)
        rows += [_one(arguments, given, name, **options)[2] for given in each]
    base = next(row["makespan"] for row in rows if row["schedule"] == "1f1b_2nd")
    return {"schedules": [{**row, "speedup_over_1f1b_2nd": base / row["makespan"]} for row in rows]}


def _tune(arguments, times) -> dict[str, Any]:
    import dataclasses

    from janus_jax.schedule import tune

    search = {"trials": arguments.trials, "seed": arguments.seed} if arguments.schedule == "split" else {}
    best, tried = tune(
        arguments.schedule, arguments.stages, arguments.microbatches, times, arguments.memory,
        sizes=numbers(arguments.sizes) or None, transfer=arguments.transfer, blocking=arguments.blocking, **search,
    )  # fmt: skip
    found = {"best": dataclasses.asdict(best), "tried": [dataclasses.asdict(choice) for choice in tried]}
    if arguments.schedule == "split":
        others = _both(arguments, times)[1:]
        found["shares"] = times.shares
        found["with_other_shares"] = [_one(arguments, other, "split", cap=best.value)[2] for other in others]
    return found


def show(figures: dict[str, Any]) -> None:
    from janus_jax.cli import _tables

    if "gantt" in figures:
        print(figures["gantt"])
        print(
            f"{figures['schedule']}: bubble {100 * figures['bubble']:.1f} %, makespan {figures['makespan']:.4g} "
            f"(no schedule is below {figures['lower_bound']:.4g}), "
            f"at most {figures['peak_inflight']} micro-batches on a device; {figures['shares']}"
        )
    elif "schedules" in figures:
        head = ["schedule", "shares", "bubble, %", "makespan", "over 1F1B-2nd", "micro-batches held"]
        _tables.show(head, [
            [s["schedule"], s["shares"] if "BFt" in s["shares"] else "",
             f"{100 * s['bubble']:.1f}", f"{s['makespan']:.4g}", f"{s['speedup_over_1f1b_2nd']:.2f}",
             s["peak_inflight"]] for s in figures["schedules"]
        ])  # fmt: skip
    else:
        rows = [[c["value"], f"{c['makespan']:.4g}", f"{100 * c['bubble']:.1f}", f"{c['memory']:.4g}",
                 "best" if c["value"] == figures["best"]["value"] else "" if c["fits"] else "too large"]
                for c in figures["tried"]]  # fmt: skip
        _tables.show(["unit or cap", "makespan", "bubble, %", "memory", ""], rows)
        if "shares" in figures:
            print(f"all with {figures['shares']}")
    for other in figures.get("with_other_shares", ()):
        print(f"{other['schedule']} if {other['shares']}: bubble {100 * other['bubble']:.1f} %")
