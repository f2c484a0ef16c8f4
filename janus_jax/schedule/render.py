"""Pictures of timelines: text Gantt, SVG in the paper's manner, Chrome trace (Perfetto opens it), CSV."""

import json
from collections.abc import Iterator

from janus_jax.schedule.instructions import COMPUTE, RECEIVE, SEND
from janus_jax.schedule.simulate import Timeline
from janus_jax.schedule.validate import carried

COLORS = {
    "FE": "#9ecae1", "FE*": "#deebf7", "FF": "#4292c6", "BF": "#f16913", "BE": "#fdae6b",
    "BFt": "#d94801", "BFr": "#f16913", "BEh": "#fd8d3c", "BEw": "#fdd0a2",
}  # fmt: skip
LETTERS = {"FE": "e", "FF": "f", "BF": "F", "BE": "E", "BFt": "t", "BFr": "r", "BEh": "h", "BEw": "w"}


def gantt(timeline: Timeline, width: int = 100) -> str:
    """One line a device, one letter a phase; a dot is idle time. The legend comes last."""
    scale = width / timeline.makespan
    lines = []
    for device, instructions in enumerate(timeline.schedule.devices):
        row = ["."] * width
        for k, (op, _, _) in enumerate(instructions):
            if op in COMPUTE:
                start, end = timeline.start[device][k] * scale, timeline.end[device][k] * scale
                for column in range(round(start), max(round(end), round(start) + 1)):
                    if column < width:
                        row[column] = LETTERS[op]
        lines.append(f"D{device:<3}{''.join(row)}")
    used = {i.op for device in timeline.schedule.devices for i in device}
    legend = "  ".join(f"{letter} {op}" for op, letter in LETTERS.items() if op in used)
    return "\n".join([*lines, f"    {legend}  . idle"])


def svg(timeline: Timeline, width: int = 1200) -> str:
    """Devices from top to bottom, time from left to right, micro-batch numbers in the boxes."""
    rows, height, left = len(timeline.schedule.devices), 26, 40
    scale = (width - left - 10) / timeline.makespan
    shapes = []
    for device, instructions in enumerate(timeline.schedule.devices):
        y = 10 + device * height
        shapes.append(f'<text x="8" y="{y + 15}" class="d">D{device}</text>')
        for k, instruction in enumerate(instructions):
            if instruction.op not in COMPUTE:
                continue
            start, end = float(timeline.start[device][k]), float(timeline.end[device][k])
            x, wide = left + start * scale, (end - start) * scale
            title = f"{instruction}: {start:.4g} to {end:.4g}"
            shapes.append(
                f'<g><title>{title}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{height - 4}" '
                f'fill="{COLORS[instruction.op]}"/>'
                + (f'<text x="{x + wide / 2:.2f}" y="{y + 15}">{instruction.micro}</text>' if wide > 9 else "")
                + "</g>"
            )
    below = 10 + rows * height
    used = [op for op in COLORS if any(i.op == op for device in timeline.schedule.devices for i in device)]
    for k, op in enumerate(used):
        shapes.append(f'<rect x="{left + 70 * k}" y="{below + 6}" width="12" height="12" fill="{COLORS[op]}"/>')
        shapes.append(f'<text x="{left + 70 * k + 16}" y="{below + 16}" class="l">{op}</text>')
    note = f"{timeline.schedule.name}: bubble {100 * timeline.bubble:.1f} %, makespan {timeline.makespan:.4g}"
    shapes.append(f'<text x="{left}" y="{below + 36}" class="l">{note}</text>')
    style = (
        "text{font:10px sans-serif;text-anchor:middle;fill:#222}.d,.l{text-anchor:start}"
        "rect{stroke:#fff;stroke-width:.5}"
    )
    size = f'width="{width}" height="{below + 46}" viewBox="0 0 {width} {below + 46}"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n{body}\n</svg>\n'


def chrome_trace(timeline: Timeline, unit_microseconds: float = 1000.0) -> str:
    """JSON for chrome://tracing and Perfetto: a thread a device, arrows from sends to receives.

    Args:
        unit_microseconds: of the timeline's unit of time.
    """
    return json.dumps({"traceEvents": list(_events(timeline, unit_microseconds)), "displayTimeUnit": "ms"})


def _events(timeline: Timeline, unit: float) -> Iterator[dict]:
    schedule = timeline.schedule
    sends: dict[tuple, int] = {}
    for device, instructions in enumerate(schedule.devices):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": device, "args": {"name": f"device {device}"}}
        for k, instruction in enumerate(instructions):
            op, stage, micro = instruction
            start, end = timeline.start[device][k] * unit, timeline.end[device][k] * unit
            place = {"pid": 0, "tid": device, "ts": start}
            if op in COMPUTE:
                arguments = {"stage": stage, "micro_batch": micro}
                yield {"ph": "X", "name": str(instruction), "cat": op, "dur": end - start, "args": arguments, **place}
            elif op in SEND + RECEIVE:
                number = sends.setdefault(carried(instruction, schedule.stages), len(sends))
                name = {"name": op[1:2] + op[2:], "cat": "transfer", "id": number}
                yield {"ph": "X", **name, "name": str(instruction), "dur": max(end - start, 0.0), **place}
                yield {"ph": "s" if op in SEND else "f", "bp": "e", **name, **place}


def csv(timeline: Timeline) -> str:
    """Columns device, op, stage, micro, start, end."""
    rows = [
        f"{device},{op},{stage},{micro},{timeline.start[device][k]:.9g},{timeline.end[device][k]:.9g}"
        for device, instructions in enumerate(timeline.schedule.devices)
        for k, (op, stage, micro) in enumerate(instructions)
    ]
    return "\n".join(["device,op,stage,micro,start,end", *rows]) + "\n"
