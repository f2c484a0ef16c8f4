"""ASE dynamics with fairchem-core's model: python fairchem_md.py PROBLEM.npz ANSWER.json (from benchmarks/md.py)

The graph of each step is made by fairchem's own `AtomicData.from_ase` with `r_edges`, as its ASE calculator does it;
weights are those of the problem.
"""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator, all_changes
from ase.md.verlet import VelocityVerlet
from common import load
from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch
from fairchem_peer import build


class FairchemCalculator(Calculator):
    """Energy and forces of a backbone and head."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 (ASE's convention)

    def __init__(self, backbone, head, cutoff: float):
        super().__init__()
        self.backbone, self.head, self.cutoff = backbone.eval(), head.eval(), cutoff

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        data = AtomicData.from_ase(self.atoms, r_edges=True, radius=self.cutoff, max_neigh=300, r_data_keys=[])
        data.charge, data.spin = torch.tensor([0]), torch.tensor([0])
        batch = atomicdata_list_to_batch([data])
        output = self.head(batch, self.backbone(batch))
        self.results = {
            "energy": float(output["energy"][0]),
            "forces": output["forces"].detach().numpy().astype(float),
        }


def main(problem_path: str, answer_path: str) -> None:
    torch.set_num_threads(2)
    problem = load(problem_path)
    backbone, head = build(problem)
    atoms = Atoms(problem.numbers, problem.positions, cell=problem.cell, pbc=True)
    atoms.set_momenta(problem.momenta)
    atoms.calc = FairchemCalculator(backbone, head, problem.model["cutoff_angstrom"])
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
