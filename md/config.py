"""Configuration of a run of dynamics: `janus-jax md CONFIG`, and options of `Engine` and `Simulation`."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from janus_jax.configuration import Section
from md.ensembles import EnsembleConfig


class EngineConfig(Section):
    """Devices, cut, and when neighbours are searched."""

    devices: PositiveInt = 1
    cut: Literal["auto", "grid", "hilbert", "morton"] = "auto"
    skin_angstrom: PositiveFloat = 0.5
    """Neighbours are kept up to the cutoff and so much more."""
    interval: PositiveInt = 10
    """Most steps between searches for neighbours."""
    repartition: PositiveInt = 100
    """Steps between new cuts; one is also made when halos have grown."""
    halo_growth: float = Field(default=1.25, gt=1.0)
    """Cut anew when halos have so many times the rows they had after the last cut."""
    overlap: bool | None = None
    """Messages of owned sources apart from the others, so that exchanges hide behind them; null: not on CPUs."""
    closest_angstrom: NonNegativeFloat = 0.4
    """Stop when two atoms are closer."""
    hottest_kelvin: PositiveFloat = 50_000.0
    """Stop when the temperature is higher."""
    seed: int = 0
    """Of velocities and noise."""
    dataset: NonNegativeInt = 0
    """Index of the data-set embedding to use, for models that have one."""


class OutputConfig(Section):
    """What a run writes, and how often."""

    thermo: PositiveInt = 10
    """Steps between rows of thermo.csv."""
    frames: NonNegativeInt = 100
    """Steps between frames of the trajectory; 0: none."""
    formats: tuple[Literal["h5md", "extxyz"], ...] = ("extxyz",)
    """Of the trajectory; h5md is smaller and faster."""
    fields: tuple[Literal["velocities", "forces"], ...] = ("velocities",)
    """Besides positions."""
    sample: NonNegativeInt = 0
    """Steps between samples of pair distributions and displacements; 0: none."""
    skip_ps: NonNegativeFloat = 0.0
    """Not sampled in the beginning."""
    rdf_angstrom: PositiveFloat | None = None
    """Range of pair distributions; null: the model's cutoff."""
    rdf_bins: PositiveInt = 100
    checkpoint: NonNegativeInt = 1000
    """Steps between checkpoints; 0: only at the end and on SIGTERM."""
    report: bool = True
    """Pictures and report.html at the end."""


class MdConfig(Section):
    """Dynamics of a structure."""

    structure: str = ""
    """File in any format ASE reads."""
    frame: int = 0
    """Of a trajectory in that file."""
    repeat: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)
    """Copies of the cell along its vectors."""
    model: str = ""
    """Model file or run folder."""
    folder: str = ""
    """Where files go; empty: runs/md-NAME."""
    steps: PositiveInt = 1000
    ensemble: EnsembleConfig = EnsembleConfig()
    engine: EngineConfig = EngineConfig()
    output: OutputConfig = OutputConfig()
