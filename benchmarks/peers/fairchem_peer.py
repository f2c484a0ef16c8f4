"""fairchem-core's side (torch on the CPU): python fairchem_peer.py PROBLEM.npz ANSWER.json

Edges are given, so its neighbour search is not timed. Eager mode, default execution backend.
"""

import os
import sys

import torch
from common import answer, load
from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch
from fairchem.core.models.uma.escn_md import MLP_EFS_Head, eSCNMDBackbone


def settings(problem) -> dict:
    """Arguments of fairchem's backbone for the problem's model."""
    model = problem.model
    return {
        "max_num_elements": model["max_element"] + 1,
        "sphere_channels": model["channels"],
        "hidden_channels": model["hidden_channels"],
        "edge_channels": model["edge_channels"],
        "num_layers": model["num_layers"],
        "num_distance_basis": model["num_basis"],
        "lmax": model["lmax"],
        "mmax": model["mmax"],
        "cutoff": model["cutoff_angstrom"],
        "act_type": model["activation"],
        "ff_type": model["feed_forward"],
        "chg_spin_emb_type": "pos_emb",
        "use_dataset_embedding": False,
        "otf_graph": False,
        "always_use_pbc": False,
        "direct_forces": False,
        "regress_forces": True,
        "regress_stress": False,
    }


def build(problem) -> tuple[eSCNMDBackbone, MLP_EFS_Head]:
    """Backbone and head with the problem's weights."""
    backbone = eSCNMDBackbone(**settings(problem))
    head = MLP_EFS_Head(backbone, wrap_property=False)
    weights = {name: torch.tensor(array) for name, array in problem.weights.items()}
    head.load_state_dict({name[5:]: value for name, value in weights.items() if name.startswith("head.")})
    rest = {name: value for name, value in weights.items() if not name.startswith("head.")}
    missing, unknown = backbone.load_state_dict(rest, strict=False)
    trained = {name for name, _ in backbone.named_parameters()}
    if unknown or trained & set(missing):
        raise SystemExit(f"weights do not fit: missing {trained & set(missing)}, unknown {unknown}")
    return backbone, head


def batch_of(problem) -> AtomicData:
    """The structure with its edges."""
    atoms, edges = len(problem.numbers), len(problem.source)
    integer = lambda array: torch.as_tensor(array, dtype=torch.long)  # noqa: E731
    real = lambda array: torch.as_tensor(array, dtype=torch.float32)  # noqa: E731
    data = AtomicData(
        pos=real(problem.positions),
        atomic_numbers=integer(problem.numbers),
        cell=real(problem.cell)[None],
        pbc=torch.ones(1, 3, dtype=torch.bool),
        natoms=integer([atoms]),
        edge_index=torch.stack([integer(problem.source), integer(problem.centre)]),
        cell_offsets=real(problem.image),
        nedges=integer([edges]),
        charge=integer([0]),
        spin=integer([0]),
        fixed=torch.zeros(atoms, dtype=torch.long),
        tags=torch.zeros(atoms, dtype=torch.long),
    )
    return atomicdata_list_to_batch([data])


def main(problem_path: str, answer_path: str) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    problem = load(problem_path)
    (backbone, head), batch, targets = build(problem), batch_of(problem), torch.tensor(problem.targets)
    both = torch.nn.ModuleDict({"backbone": backbone, "head": head})
    names, weights = zip(*[(n, p) for n, p in both.named_parameters() if p.requires_grad], strict=True)

    def predict():
        both.eval()
        output = head(batch, backbone(batch))
        return output["energy"][0].detach(), output["forces"].detach()

    def train():
        both.train()
        output = head(batch, backbone(batch))
        loss = output["energy"][0] / len(targets) + (output["forces"] - targets).norm(dim=-1).mean()
        return loss.detach(), dict(zip(names, torch.autograd.grad(loss, weights), strict=True))

    answer(
        answer_path,
        packages=["fairchem-core", "torch"],
        parameters=sum(weight.numel() for weight in weights),
        predict=predict,
        train=train,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
