"""From where on a run is stationary, and what may be said of it.

The start that is left out is the one with which the rest has most independent values (Chodera, J. Chem. Theory
Comput. 12, 1799, 2016): as long as a quantity still moves to its mean, its correlation is long.
"""

from collections.abc import Mapping

import numpy as np

LEAST = 10
"""With fewer independent values of a quantity nothing can be said."""
STARTS = 40
"""Different starts that are tried."""
ERRORS = 3.0
"""A start counts as another state if its mean is so many standard errors away from that of the rest."""


def independent(values: np.ndarray) -> float:
    """Number of independent values among correlated ones [n], at least 1."""
    n, moved = len(values), values - values.mean()
    power = np.abs(np.fft.rfft(moved, 2 * n)) ** 2
    correlation = np.fft.irfft(power)[:n] / np.arange(n, 0, -1)
    if n < 3 or correlation[0] <= 0:
        return float(n)
    correlation = correlation / correlation[0]
    end = int(np.argmax(correlation <= 0)) or n
    return n / max(1.0, 1 + 2 * float((correlation[1:end] * (1 - np.arange(1, end) / n)).sum()))


def start(values: np.ndarray) -> int:
    """Readings [n] to leave out at the beginning; 0 where the beginning is like the rest."""
    n = len(values)
    every = np.unique(np.linspace(0, int(0.9 * n), STARTS).astype(int))
    first = int(every[np.argmax([independent(values[k:]) for k in every])])
    if not first:
        return 0
    early, late = values[:first], values[first:]
    correlated = len(late) / independent(late)
    error = late.std() * np.sqrt(correlated / len(late) + max(correlated, 1) / len(early))
    return first if abs(early.mean() - late.mean()) > ERRORS * error else 0


def said(thermo: Mapping[str, np.ndarray], ensemble: str, ramped: bool) -> str | None:
    """A sentence about a start that is not in equilibrium, None if it is.

    Args:
        thermo: columns of thermo.csv; ensemble: its name; ramped: temperature or pressure are not constant.
    """
    time = np.asarray(thermo["time_fs"]) / 1000
    if ensemble == "minimize" or ramped:
        return None
    quantities = {"temperature": "temperature_kelvin", "potential energy": "potential_ev"}
    quantities |= {"volume": "volume_angstrom3"} if ensemble == "npt" else {}
    columns = {name: np.asarray(thermo[key]) for name, key in quantities.items()}
    enough = len(time) >= LEAST
    starts = {name: start(values) if enough else 0 for name, values in columns.items()}
    last = max(starts.values())
    if not enough or any(independent(values[last:]) < LEAST for values in columns.values()):
        return f"too short to tell whether it is in equilibrium: fewer than {LEAST} independent readings"
    if not last:
        return None
    moving = " and ".join(name for name, first in starts.items() if first)
    left = time[last] - time[0]
    if last > len(time) / 2:
        return f"not in equilibrium: {moving} had not come to rest before the last {time[-1] - time[last]:.3g} ps"
    return (
        f"the first {left:.3g} of {time[-1] - time[0]:.3g} ps are not in equilibrium ({moving}); the averages here "
        "contain them"
    )
