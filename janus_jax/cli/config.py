"""`janus-jax config template|validate|schema`, of training or with --md of dynamics."""

import argparse
import json
from typing import Any


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import configuration
    from janus_jax.cli import train
    from janus_jax.train.config import TrainConfig
    from md.config import MdConfig

    if arguments.action == "schema":
        schema = MdConfig if arguments.md else TrainConfig
        return {"text": json.dumps(schema.model_json_schema(), indent=1)}
    if arguments.md:
        config = configuration.load(MdConfig, *train.file_and_overrides(arguments.arguments))
    else:
        config = train.configure(arguments.arguments)
    if arguments.action == "template":
        return {"text": configuration.template(config).rstrip()}
    return {"text": "valid; as it will be used:\n\n" + configuration.dump(config).rstrip(), "valid": True}


def show(figures: dict[str, Any]) -> None:
    print(figures["text"])
