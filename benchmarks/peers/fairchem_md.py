"""ASE dynamics with fairchem-core's calculator, started by benchmarks/dynamics.py.

    python fairchem_md.py PROBLEM.npz ANSWER.json

The weights of the problem are written as a checkpoint of fairchem, which its `FAIRChemCalculator` loads. Graphs are
made by fairchem in each step. Its settings are the defaults without recomputing activations, which would be slower.
"""

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from common import load
from fairchem.core.calculate.ase_calculator import FAIRChemCalculator
from fairchem.core.units.mlip_unit import MLIPPredictUnit
from fairchem.core.units.mlip_unit.api.inference import InferenceSettings, MLIPInferenceCheckpoint
from fairchem_peer import build, settings

UNIT = "fairchem.core.units.mlip_unit.mlip_unit"
PROPERTIES = {"energy": ("system", [1]), "forces": ("atom", [3])}


def checkpoint(problem) -> MLIPInferenceCheckpoint:
    """The problem's model and weights as fairchem keeps them."""
    backbone, head = build(problem)
    state = {f"module.backbone.{name}": value for name, value in backbone.state_dict().items()}
    state |= {f"module.output_heads.efs.{name}": value for name, value in head.state_dict().items()}
    uma = "fairchem.core.models.uma.escn_md"
    model = {
        "_target_": "fairchem.core.models.base.HydraModel",
        "backbone": {"model": f"{uma}.eSCNMDBackbone", **settings(problem)},
        "heads": {"efs": {"module": f"{uma}.MLP_EFS_Head"}},
        "pass_through_head_outputs": True,
    }
    tasks = [
        {
            "_target_": f"{UNIT}.Task",
            "name": name,
            "level": level,
            "property": name,
            "out_spec": {"_target_": f"{UNIT}.OutputSpec", "dim": shape, "dtype": "float32"},
            "normalizer": {"_target_": "fairchem.core.modules.normalization.normalizer.Normalizer"},
            "datasets": ["water"],
        }
        for name, (level, shape) in PROPERTIES.items()
    ]
    return MLIPInferenceCheckpoint(model, {}, {**state, "n_averaged": torch.tensor(1)}, tasks)


def calculator(problem) -> FAIRChemCalculator:
    """fairchem's own, with the problem's weights."""
    options = InferenceSettings(activation_checkpointing=False, auto_add_default_untrained_tasks=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save(checkpoint(problem), path)
        return FAIRChemCalculator(MLIPPredictUnit(str(path), inference_settings=options))


def main(problem_path: str, answer_path: str) -> None:
    torch.set_num_threads(2)
    problem = load(problem_path)
    atoms = Atoms(problem.numbers, problem.positions, cell=problem.cell, pbc=True)
    atoms.set_momenta(problem.momenta)
    atoms.calc = calculator(problem)
    forces = atoms.get_forces()
    steps = int(problem.steps)
    dynamics = VelocityVerlet(atoms, float(problem.timestep) * units.fs)
    dynamics.run(1)
    began = time.perf_counter()
    dynamics.run(steps)
    rate = steps / (time.perf_counter() - began)
    versions = {name: version(name) for name in ("fairchem-core", "torch", "ase")}
    with open(answer_path, "w") as file:
        json.dump({"steps_per_s": rate, "forces": np.asarray(forces).tolist(), "versions": versions}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
