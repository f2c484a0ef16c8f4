"""`janus-jax config template|validate|schema`."""

import argparse
import json
from typing import Any


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import configuration
    from janus_jax.cli.train import configure
    from janus_jax.train.config import TrainConfig

    if arguments.action == "schema":
        return {"text": json.dumps(TrainConfig.model_json_schema(), indent=1)}
    config = configure(arguments.arguments)
    if arguments.action == "template":
        return {"text": configuration.template(config).rstrip()}
    return {"text": "valid; as it will be used:\n\n" + configuration.dump(config).rstrip(), "valid": True}


def show(figures: dict[str, Any]) -> None:
    print(figures["text"])
