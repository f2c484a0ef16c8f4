"""The text that `run.py` prints."""

COLUMNS = (("", 10), ("energy + forces", 29), ("training gradient", 29), ("first calls", 16))
COLUMNS += (("peak memory", 13), ("other load", 12))
HEAD = "".join(f"{name:>{width}}" for name, width in COLUMNS)


def table(result: dict) -> str:
    """Times with the range of the rounds, differences of the numbers, and what was run."""
    structure, model, machine = result["structure"], result["model"], result["machine"]
    lines = [
        f"{structure['atoms']} atoms, {structure['directed_edges']} directed edges; eSEN, {model['num_layers']} layers,"
        f" {model['channels']} channels, float32; {machine['threads']} threads, {machine['processor']}",
        "",
        HEAD,
    ]
    lines += [_row(name, side) for name, side in result["sides"].items()]
    lines += ["", "relative difference to janus_jax (shared weights, structure and edges)"]
    for name, values in result["difference_to_janus_jax"].items():
        lines.append(f"{name:10} " + "  ".join(f"{key} {value:.1e}" for key, value in values.items()))
    lines += ["", "versions"]
    for name, side in result["sides"].items():
        lines.append(f"{name:10} " + ", ".join(f"{key} {value}" for key, value in side["versions"].items()))
    return "\n".join([*lines, "", result["command"]])


def _row(name: str, side: dict) -> str:
    tasks = [side["energy_forces"], side["training_gradient"]]
    times = " ".join(f"{_time(task):>28}" for task in tasks)
    first = " / ".join(f"{task['first_call_s']:.1f}" for task in tasks) + " s"
    load = max(task["other_cores"] for task in tasks)
    return f"{name:10} {times} {first:>15} {side['peak_memory_mb']:>9} MB {load:>11.2f}"


def _time(task: dict) -> str:
    return f"{task['median_ms']:.0f} ms ({min(task['rounds_ms']):.0f} to {max(task['rounds_ms']):.0f})"
