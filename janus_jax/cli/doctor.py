"""`janus-jax doctor`: what a bug report needs."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

OURS = ("janus_jax", "md", "partition", "pallas_kernels")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import jax

    import janus_jax
    from janus_jax.versions import versions

    home = Path(janus_jax.__file__).parent.parent
    shadowed = {}
    for name in OURS:
        spec = importlib.util.find_spec(name)
        place = Path(spec.origin).parent.parent if spec and spec.origin else None
        if place != home:
            shadowed[name] = str(place)
    return {
        "versions": versions(),
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "x64": bool(jax.config.jax_enable_x64),
        "shadowed": shadowed,
    }


def show(figures: dict[str, Any]) -> None:
    for name, version in figures["versions"].items():
        print(f"{name:18} {version}")
    print(f"{'devices':18} {', '.join(figures['devices'])} (64-bit mode {'on' if figures['x64'] else 'off'})")
    for name, place in figures["shadowed"].items():
        print(f"WARNING: package {name!r} is found in {place}, not beside janus_jax; rename or remove that package")
    if not figures["shadowed"]:
        print("packages           janus_jax, md, partition, pallas_kernels: found where expected")
