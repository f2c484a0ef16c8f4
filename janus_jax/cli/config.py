"""`janus-jax config template|validate|schema`, of training or with --md of dynamics."""

import argparse
import json
from typing import Any


def configure(arguments: list[str], schema):
    """The configuration of a command line: at most one file, then overrides."""
    from janus_jax import configuration
    from janus_jax.cli import train
    from janus_jax.train.config import TrainConfig

    if schema is TrainConfig:
        return train.configure(arguments)
    overrides = [text for text in arguments if "=" in text]
    files = [text for text in arguments if "=" not in text]
    return configuration.load(schema, files[0] if files else None, overrides)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import configuration
    from janus_jax.train.config import TrainConfig

    if arguments.md:
        from md.config import MdConfig

        schema = MdConfig
    else:
        schema = TrainConfig
    if arguments.action == "schema":
        return {"text": json.dumps(schema.model_json_schema(), indent=1)}
    config = configure(arguments.arguments, schema)
    if arguments.action == "template":
        return {"text": configuration.template(config).rstrip()}
    return {"text": "valid; as it will be used:\n\n" + configuration.dump(config).rstrip(), "valid": True}


def show(figures: dict[str, Any]) -> None:
    print(figures["text"])
