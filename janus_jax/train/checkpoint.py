"""Orbax checkpoints of a run: the best and the last, written in the background.

A checkpoint holds the whole `TrainState` (raw and averaged parameters, optimizer, step) and, as
JSON, the position in the data and the resolved configuration.
"""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from janus_jax.train.state import TrainState

FORMAT = 1
METRIC = "validation"


class Checkpoints:
    """The checkpoints below `folder`, by step."""

    def __init__(self, folder: str | Path):
        def metric(metrics: dict[str, float]) -> float:
            return metrics[METRIC]

        policy = checkpoint_managers.AnyPreservationPolicy(
            [checkpoint_managers.LatestN(n=1), checkpoint_managers.BestN(get_metric_fn=metric, reverse=True, n=1)]
        )
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, best_fn=metric, best_mode="min")
        self.manager = ocp.CheckpointManager(Path(folder).absolute(), options=options)

    def save(self, state: TrainState, validation: float, about: dict[str, Any]) -> None:
        """`validation` is the loss that decides which is best (smaller is better)."""
        contents = ocp.args.Composite(
            state=ocp.args.StandardSave(state),  # type: ignore[call-arg]
            about=ocp.args.JsonSave({"format": FORMAT, **about}),  # type: ignore[call-arg]
        )
        self.manager.save(int(state.step), args=contents, metrics={METRIC: float(validation)})

    def restore(self, like: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """The state at `step` (the last if None), with shapes and types of `like`, and what was saved about it."""
        contents = ocp.args.Composite(
            state=ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, like)),  # type: ignore[call-arg]
            about=ocp.args.JsonRestore(),
        )
        restored = self.manager.restore(self.manager.latest_step() if step is None else step, args=contents)
        return restored["state"], restored["about"]

    def steps(self) -> list[int]:
        return sorted(self.manager.all_steps())

    def best(self) -> int | None:
        """Step of the checkpoint with the smallest validation loss."""
        return self.manager.best_step()

    def close(self) -> None:
        """Wait for what is being written."""
        self.manager.wait_until_finished()
        self.manager.close()
