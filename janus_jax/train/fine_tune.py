"""Reference energies for a trained model on new labels.

A new method moves total energies by almost a sum over atoms. Reference energies of the new data alone
would not fit what the network has learnt above its old ones; so the old ones are moved, by least
squares of what the model misses.
"""

import numpy as np

from janus_jax.data import batching, references
from janus_jax.data.dataset import Dataset
from janus_jax.models.potential import Potential
from janus_jax.train.evaluate import evaluate

SAMPLE = 256


def references_sample(data: Dataset) -> np.ndarray:
    """Up to SAMPLE structures with energies: the first of each composition, then evenly through the data."""
    rows = data.records
    known = np.flatnonzero(np.isfinite(rows["energy"]))
    _, first = np.unique(rows["composition"][known], return_index=True)
    even = known[np.linspace(0, len(known) - 1, min(SAMPLE, len(known))).astype(int)] if len(known) else known
    chosen = dict.fromkeys([*known[first].tolist(), *even.tolist()])
    return np.array(sorted(list(chosen)[:SAMPLE]), int)


def moved_references(model: Potential, data: Dataset, batch_atoms: int) -> references.Fit:
    """The model's reference energies plus, per element of the data, what makes its energies fit on average.

    Without energies they stay.
    """
    chosen, old = references_sample(data), dict(model.references)
    if not len(chosen):
        return references.Fit(old)
    rows = data.records[chosen]
    kinds, which = np.unique(rows["composition"], return_inverse=True)
    compositions = [data.summary.compositions[k] for k in kinds]
    capacity = batching.choose(rows["atoms"], rows["edges"], max(batch_atoms, int(rows["atoms"].max())))
    model.references = ()
    network = evaluate(model, (data[int(index)] for index in chosen), capacity).energy
    offset = np.array([sum(old.get(number, 0.0) * count for number, count in kind.items()) for kind in compositions])
    moved, far, plain = references.fit(compositions, which, rows["energy"] - network - offset[which])
    model.references = tuple(sorted(old.items()))
    new, with_all = ({number: old.get(number, 0.0) + shift for number, shift in by.items()} for by in (moved, plain))
    return references.Fit.of(old | new, data.indices[chosen], far, with_all)
