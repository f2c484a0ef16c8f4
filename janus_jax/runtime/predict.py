"""Predictions of a model whose parameters are spread over a pipeline, many batches on their way at once."""

from collections.abc import Sequence
from itertools import batched
from typing import TYPE_CHECKING

import jax
import numpy as np

from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Potential, Prediction, from_gradient
from janus_jax.prediction import Predictor
from janus_jax.stages import Place
from janus_jax.train.state import TrainState

if TYPE_CHECKING:
    from janus_jax.runtime.trainer import PipelineTrainer


class PipelinePredictor(Predictor):
    """As `Predictor`, with the averaged parameters of a state where they are.

    Args:
        model: of the same structure; its parameters are not used.
    """

    def __init__(self, trainer: "PipelineTrainer", state: TrainState, model: Potential):
        self.model, self.trainer = model, trainer
        self.params = trainer.stage_params(state, averaged=True)
        self.width = trainer.mesh.data * trainer.schedule.micro_batches

    def compute(self, graphs: Sequence[AtomGraph]) -> list[Prediction]:
        return [found for some in batched(graphs, self.width) for found in self._together(some)]

    def _together(self, graphs: Sequence[AtomGraph]) -> list[Prediction]:
        trainer, data = self.trainer, self.trainer.mesh.data
        filled = [*graphs, *[graphs[-1]] * (self.width - len(graphs))]  # as many as the schedule is for
        batch = trainer.batch(filled, None)
        done = trainer.forward.run(self.params, batch)
        transport, ranks = trainer.executor.transport, trainer.programs.loss_ranks
        found: list[Prediction] = []
        for micro, stacked in enumerate(batch.micro_batches):
            place = Place.of(stacked)
            energy = transport.fetch(done.stash.get(("E", micro)), _energies(stacked), ranks["energy"])
            gx = transport.fetch(done.stash.get(("gx", micro)), place, ranks["forces"])
            for k in range(min(data, len(graphs) - len(found))):
                parts = energy[k], gx.positions[k], gx.strain[k], filled[micro * data + k]
                found.append(jax.tree.map(np.asarray, from_gradient(*parts)))
        return found


def _energies(stacked: AtomGraph) -> np.ndarray:
    return np.zeros(stacked.charge.shape, stacked.positions.dtype)
