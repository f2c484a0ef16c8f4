"""A run with its files: readings, trajectory, distributions, checkpoints, report.

Frames pass through the host of process 0, so trajectories are for systems whose positions fit there.
"""

import contextlib
import math
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import jax
import numpy as np
from ase import Atoms

from janus_jax import configuration, storage
from janus_jax.errors import ConfigError, DynamicsError
from janus_jax.lock import Hold
from janus_jax.models.potential import Potential
from janus_jax.runtime import multihost
from janus_jax.train import items
from janus_jax.train.interruption import agreed
from md import figures, report, restart, resume
from md.config import EngineConfig, OutputConfig
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.files import EXTXYZ, H5MD, Files
from md.observables import Sampler
from md.reading import THERMO, Reading, read_thermo

START = "start.traj"
CHUNK = 100
"""Steps after which a run asks at the latest whether to stop."""


class Simulation:
    """Dynamics of one system from ASE's `Atoms`, and back.

    Args:
        model: a potential; atoms: start.
        folder: where files go; without it nothing is written. Must not hold an earlier run.
        resume: go on from the newest checkpoint in `folder`; `atoms` may be None then.
        before_files: called by process 0 of a new run that can start, before its first file: for what else belongs
            into the folder.
        options: fields of `EngineConfig` and `OutputConfig`.

    Raises:
        ConfigError: a bad option, or a folder with a run in it.
        CheckpointError: nothing to go on from.
        RunInUseError: another process is at the run in `folder`.
        DynamicsError, UnknownElementError: as `Engine`.
    """

    def __init__(
        self,
        model: Potential,
        atoms: Atoms | None = None,
        ensemble: EnsembleConfig | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        before_files: Callable[[], None] = lambda: None,
        **options: Any,
    ):
        output = {name: options.pop(name) for name in OutputConfig.model_fields if name in options}
        self.output = configuration.validate(OutputConfig, output)
        self.folder = None if folder is None else Path(folder)
        if self.folder and not resume:
            there = [name for name in (THERMO, EXTXYZ, H5MD) if (self.folder / name).exists()]
            there += [restart.FOLDER] if restart.holds_some(self.folder) else []
            if there:
                raise ConfigError(
                    f"{self.folder} holds a run already ({', '.join(there)}); give another folder, or resume it"
                )
        self._release: Callable[[], object] = lambda: None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._release = weakref.finalize(self, Hold(self.folder).release)
            items.clear_unfinished(self.folder / restart.FOLDER)
        self._checkpoints = restart.Checkpoints(self.folder) if self.folder else None
        saved = None
        if resume:
            if self._checkpoints is None:
                raise ConfigError("to resume a run, give its folder")
            devices = options.get("devices", EngineConfig().devices)
            saved = self._checkpoints.load(devices)
            if atoms is None:
                atoms = ase.io.read(self.folder / START)  # type: ignore[assignment, operator]
        if not isinstance(atoms, Atoms):
            raise ConfigError("no structure: give ASE's Atoms")
        self.engine = engine = Engine(model, atoms, ensemble, saved=saved, **options)
        self.start, self.readings = atoms.copy(), []
        table = dict(model.references)
        self.references = math.fsum(table.get(int(number), 0.0) for number in atoms.numbers)
        self.mass = float(atoms.get_masses().sum())
        self.seconds, self.timed, self._warm = 0.0, 0, False  # without the first steps, which compile
        self.converged = False
        self.sampler = Sampler(engine, atoms.numbers, self.output.rdf_angstrom, self.output.rdf_bins)
        self._files = None
        if self.folder and not saved:
            self._keep_start(atoms, before_files)
        sizes = saved.about["sizes"] if saved else {}
        if self.folder and multihost.primary():
            self._files = Files(self.folder, self.output, atoms, sizes)
        if saved and sizes:
            self._go_on(saved)
        else:
            self._read()
            if self.output.frames:
                self._frame()

    def _keep_start(self, atoms: Atoms, before_files: Callable[[], None]) -> None:
        """What a resumed run needs, and last the checkpoint that makes the folder a run.

        Until it is there the same command can be given again; from then on the run can be resumed, whatever of the
        other files exists: that checkpoint knows none of them, so that they are begun anew.
        """
        assert self.folder is not None
        if multihost.primary():
            self.folder.mkdir(parents=True, exist_ok=True)
            before_files()
            with storage.replacing(self.folder / START, sum(a.nbytes for a in atoms.arrays.values())) as file:
                ase.io.write(file, atoms, format="traj")  # type: ignore[operator, arg-type]
        self._checkpoint()

    def _go_on(self, saved: restart.Saved) -> None:
        """Take over counts and readings."""
        self.sampler.restore(saved.about["sampler"])
        if self._files:
            table = read_thermo(self._files.folder)
            self.readings = [Reading.of_row(list(row), self.references) for row in zip(*table.values(), strict=True)]

    @classmethod
    def from_atoms(cls, atoms: Atoms, model: Potential, **options: Any) -> "Simulation":
        """As the constructor, from a structure as ASE has it: positions, cell, velocities, `FixAtoms`."""
        return cls(model, atoms, **options)

    def run(
        self,
        steps: int,
        progress: Callable[[Reading], None] | None = None,
        stop: Callable[[], str | None] = lambda: None,
    ) -> str | None:
        """Go on by `steps` steps; returns why it ended early, None if it did not.

        On an error the last good state is in final.extxyz and in a checkpoint.

        Args:
            progress: called with each reading.
            stop: asked now and then whether and why to end early; what one process says holds for all.
        """
        try:
            why = self._run(self.engine.step + steps, progress, stop)
        except DynamicsError:  # all processes have raised it
            self._save()
            raise
        except BaseException:
            if jax.process_count() == 1:  # of several, the others may be elsewhere
                with contextlib.suppress(Exception):
                    self._save()
            raise
        self._save()
        return why

    def close(self) -> None:
        """Let other processes go on with the run: its folder is held until then, or until this object is gone."""
        self._release()

    def _run(self, end: int, progress, stop) -> str | None:
        engine, why = self.engine, None
        while engine.step < end and why is None:
            first, began = engine.step, time.perf_counter()
            self.converged = engine.run(min(end, self._next(first)) - first)
            if self._warm:
                self.seconds += time.perf_counter() - began
                self.timed += engine.step - first
            self._warm = True
            self._write(progress)
            why = "converged" if self.converged else agreed(stop())
        return why

    def _save(self) -> None:
        """Checkpoint and final.extxyz of the present state."""
        if self.folder:
            self._checkpoint()
            state = self._state()
            if self._files:
                self._files.final(*state)

    def _next(self, step: int) -> int:
        """The next step at which something is written, or at which `stop` is asked."""
        output = self.output
        every = [n for n in (output.thermo, output.frames, output.sample, output.checkpoint, CHUNK) if n]
        return min(step + n - step % n for n in every)

    def _write(self, progress) -> None:
        """What is due at this step; the checkpoint last, since it says how long the files are."""
        output, step = self.output, self.engine.step
        if step % output.thermo == 0 or self.converged:
            self._read()
            if progress:
                progress(self.readings[-1])
        if output.frames and (step % output.frames == 0 or self.converged):
            self._frame()
        time_ps = step * self.engine.ensemble.timestep_fs / 1000
        if output.sample and step % output.sample == 0 and time_ps >= output.skip_ps:
            if not self.sampler.displacements and output.skip_ps:
                self.engine.set_origin()
            self.sampler.sample()
        if output.checkpoint and step % output.checkpoint == 0 and self.folder:
            self._checkpoint()

    def _read(self) -> None:
        reading = self.engine.read()
        self.readings.append(reading)
        if self._files:
            self._files.row(self.row(reading))

    def row(self, reading: Reading) -> list[Any]:
        """The values of `md.reading.COLUMNS`; energies include the reference energies of the atoms."""
        return reading.row(self.engine.ensemble.timestep_fs, self.references, self.mass)

    def atoms(self) -> Atoms:
        """The current state: unwrapped positions, momenta (but after a minimisation), cell."""
        now = self.start.copy()
        now.set_constraint()  # positions of fixed atoms may move with the cell
        if self.engine.ensemble.name == "npt":  # elsewhere the cell stays, and the engine completes open ones
            now.set_cell(self.engine.cell)
        now.positions = self.engine.positions()
        if self.engine.ensemble.name == "minimize":
            now.arrays.pop("momenta", None)  # FIRE's are none: dynamics from here draw their own
        else:
            now.set_momenta(self.engine.momenta())
        now.set_constraint(self.start.constraints)
        now.info["step"] = self.engine.step
        now.info["time_fs"] = self.engine.step * self.engine.ensemble.timestep_fs
        return now

    def _state(self) -> tuple[Atoms, float, np.ndarray]:
        engine = self.engine
        energy = engine.read().potential_ev if engine.ensemble.name == "minimize" else float(engine.motion.energy)
        return self.atoms(), energy + self.references, engine.forces()

    def _frame(self) -> None:
        if self.folder:  # all processes take part in gathering
            atoms, energy, forces = self._state()
            if self._files:
                self._files.frame(atoms, self.engine.step, atoms.info["time_fs"], energy, forces)

    def _checkpoint(self) -> None:
        assert self._checkpoints is not None
        arrays, about = resume.state(self.engine)
        about |= {"sampler": self.sampler.state(), "sizes": self._files.sizes() if self._files else {}}
        self._checkpoints.save(self.engine.step, arrays, about)

    def report(self, results: dict[str, Any]) -> None:
        """Write what `figures` gave as results.json, distributions.npz and report.html into the folder."""
        if self._files:
            report.save(self._files.folder, results, self.sampler)
            report.write(self._files.folder)

    def drift(self) -> float:
        """Slope of a straight line through the conserved quantity, meV/atom/ps; not a number where none is."""
        return figures.drift(self)

    def figures(self) -> dict[str, Any]:
        """What the command prints, and results.json keeps."""
        return figures.of(self)
