"""Oracle and strategies for tests: a brute-force periodic neighbour search, and systems that are hard for a fast one.

Not imported by the library. A pair is (i, j, S): centre i, neighbour j, integers S with the distance
|x[j] - x[i] + S @ cell| below the cutoff, S zero along axes that are not periodic, and not (i, i, 0).
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

Pair = tuple[int, int, int, int, int]  # i, j and the three integers of S

# Limits of `systems`, kept by lowering the cutoff: images in reach of a pair, distances, and pairs expected to be found
IMAGES, DISTANCES, FOUND = 5_000, 1_000_000, 3_000


@dataclass(frozen=True, eq=False)
class System:
    """What a neighbour search is given. Rows of `cell` are the cell vectors."""

    positions: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    cutoff: float


# Oracle


def complete_cell(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """The cell with unit vectors orthogonal to the periodic vectors, and to each other, along the other axes."""
    periodic = cell[pbc] / np.linalg.norm(cell[pbc], axis=1, keepdims=True)
    complete = cell.copy()
    complete[~pbc] = np.linalg.svd(periodic)[2][len(periodic) :]
    return complete


def image_range(inverse: np.ndarray, pbc: np.ndarray, reach: float) -> np.ndarray:
    """Largest |m| [3] of the images within reach whose fractional differences are m + f, |f| <= 1/2.

    The column a of the inverse cell is the reciprocal vector b_a, and opposite faces are 1 / |b_a| apart.
    0.01 stands for the rounding of f.
    """
    return np.where(pbc, np.floor(reach * np.linalg.norm(inverse, axis=0) + 0.51), 0.0)


def oracle_pairs(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, margin: float = 1e-7
) -> tuple[set[Pair], set[Pair]]:
    """The pairs that a search must find, and those that it may: a correct result R has must <= R <= may.

    The two differ in the pairs whose distance is within `margin` of the cutoff. The margin is scaled
    up where the terms of the distance (positions and lattice vectors) exceed 1e7 angstrom.
    """
    positions, cell = np.asarray(positions, np.float64).reshape(-1, 3), np.asarray(cell, np.float64)
    pbc = np.asarray(pbc, bool)
    if not len(positions):
        return set(), set()
    i, j = (index.ravel() for index in np.indices((len(positions), len(positions))))
    difference = positions[j] - positions[i]
    inverse = np.linalg.inv(complete_cell(cell, pbc))
    nearest = np.where(pbc, -np.round(difference @ inverse), 0.0)  # S is this plus an image m below
    lattice = np.where(pbc[:, None], cell, 0.0)

    farthest = np.abs(nearest).max(0) + image_range(inverse, pbc, cutoff)
    size = np.abs(positions).max() + farthest @ np.linalg.norm(lattice, axis=1)
    margin = margin * max(1.0, 1e-7 * size)  # at least 45 roundings of `size`
    reach = cutoff + margin
    images = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in image_range(inverse, pbc, reach)), indexing="ij"), -1)
    images = images.reshape(-1, 3)
    translation = images @ lattice
    must: set[Pair] = set()
    may: set[Pair] = set()
    chunk = max(1, 200_000 // len(images))
    for start in range(0, len(i), chunk):
        part = slice(start, start + chunk)
        offset = difference[part] + nearest[part] @ lattice
        square = np.zeros((len(offset), len(images)))
        for axis in range(3):
            square += (offset[:, None, axis] + translation[None, :, axis]) ** 2
        pair, image = np.nonzero(square < reach**2)
        shift = nearest[part][pair] + images[image]
        first, second = i[part][pair], j[part][pair]
        keep = (first != second) | (shift != 0).any(1)
        sure = np.sqrt(square[pair, image]) < cutoff - margin
        rows = np.column_stack([first, second, shift.astype(np.int64)])
        may |= set(map(tuple, rows[keep].tolist()))
        must |= set(map(tuple, rows[keep & sure].tolist()))
    return must, may


def as_set(i: ArrayLike, j: ArrayLike, S: ArrayLike) -> set[Pair]:
    """Pairs from arrays [pairs], [pairs] and [pairs, 3]; none may occur twice."""
    rows = np.column_stack([np.asarray(i), np.asarray(j), np.asarray(S).reshape(-1, 3)]).astype(np.int64)
    pairs = Counter(map(tuple, rows.tolist()))
    assert len(pairs) == len(rows), f"{len(rows) - len(pairs)} repeated pairs, most often {pairs.most_common(3)}"
    return set(pairs)


def assert_exact(found: set[Pair], system: System) -> None:
    """Fails unless `found` are the pairs of the system, each in both directions."""
    must, may = oracle_pairs(**vars(system))

    def describe(pairs: set[Pair]) -> str:
        lines = [f"{len(pairs)}:"]
        for i, j, *shift in sorted(pairs)[:5]:
            distance = "no such atoms"
            if min(i, j) >= 0 and max(i, j) < len(system.positions):
                translation = (np.array(shift)[:, None] * system.cell).sum(0)
                distance = f"{np.linalg.norm(system.positions[j] - system.positions[i] + translation):.9g} apart"
            lines.append(f"  i={i} j={j} S={tuple(shift)} {distance}")
        return "\n".join(lines)

    one_way = {(i, j, a, b, c) for i, j, a, b, c in found if (j, i, -a, -b, -c) not in found}
    kinds = {"missing": must - found, "spurious": found - may, "in one direction only": one_way}
    report = "\n".join(f"{kind} {describe(pairs)}" for kind, pairs in kinds.items() if pairs)
    given = f"cutoff {system.cutoff:.9g}, pbc {system.pbc.tolist()}, cell {system.cell.tolist()}"
    assert not report, f"{len(found)} pairs found, {len(must)} expected ({given})\n{report}"


# Systems

CATEGORIES = {
    "cutoff": (1.0, 3.0, 5.5, 9.0),
    "shape": ("orthorhombic", "triclinic", "sharp"),
    "size": ("usual", "small", "thin", "vacuum", "slab"),
    "orientation": ("aligned", "rotated", "mirrored", "rotated and mirrored"),
    "spare": ("own", "zero", "parallel"),  # cell vectors of axes that are not periodic
    "layout": ("uniform", "cluster", "line", "plane", "boundary", "coincident", "tiny"),
    "shift": ("none", "near", "far", "scattered", "negative", "distant"),
}
SHARP = ((10, 10, 10), (90, 90, 10), (170, 90, 90), (60, 65, 10), (10, 165, 160), (90, 60, 140))
BOUNDARY = (0.0, 1.0, 0.5, -1.0, -1e-17, 1.0 - 2.0**-53)


# What a crystal is made of: copies of a motif along the axes of a cell, so that atoms lie on exact fractions of it
MOTIFS = {
    "simple": ((0, 0, 0),),
    "body": ((0, 0, 0), (0.5, 0.5, 0.5)),
    "face": ((0, 0, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0)),
    "off": ((0.25, 0.25, 0.25), (0.75, 0.75, 0.25)),
}
REPEATS = ((1, 2, 3), (2, 2, 2), (3, 3, 2), (2, 3, 4), (4, 2, 1), (2, 1, 2), (3, 3, 1), (3, 2, 1))


def make_crystal(rng: np.random.Generator, most: int, cutoff: float = 3.0) -> System:
    """A crystal of at most `most` atoms on halves, thirds and quarters of its cell, some of them an ulp beside.

    Cells are cubic, orthorhombic, primitive, or strained, rotated half of the time. Many atoms are exactly on a face
    of the cell, or half a cell from each other or from their middle.
    """
    while True:
        motif = np.array(list(MOTIFS.values())[rng.integers(len(MOTIFS))])
        repeats = rng.permutation(REPEATS[rng.integers(len(REPEATS))])
        if len(motif) * np.prod(repeats) <= most:
            break
    corners = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1).reshape(-1, 1, 3)
    fractions = ((corners + motif) / repeats).reshape(-1, 3)
    primitive = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]) / np.sqrt(2)
    cell = (np.eye(3), np.diag(rng.uniform(0.9, 1.2, 3)), primitive, np.eye(3) + rng.uniform(-0.1, 0.1, (3, 3)))[
        rng.integers(4)
    ]
    if rng.random() < 0.5:
        cell = cell @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    cell = repeats[:, None] * cell * rng.choice([2.0, 2.5, 2.86])
    positions = (fractions + rng.choice([0.0, 0.0, 0.25, 0.5, -1.0])) @ cell
    if rng.random() < 0.5:
        positions = np.nextafter(positions, rng.choice([-np.inf, 0, np.inf], positions.shape))
    return System(positions, cell, np.ones(3, bool), cutoff)


def make_cell(rng: np.random.Generator, shape: str, size: str, orientation: str) -> np.ndarray:
    """A cell with angles of 10 to 170 degrees and edges of 0.06 to 10, or 1e6, angstrom."""
    angles = np.full(3, 90.0)
    if shape == "triclinic":
        angles = rng.uniform(60, 110, 3)
    elif shape == "sharp":
        angles = rng.permutation(SHARP[rng.integers(len(SHARP))])
    yz, xz, xy = np.where(angles == 90, 0.0, np.cos(np.radians(angles)))
    height = np.sqrt(1 - xy**2)
    slope = (yz - xz * xy) / height
    cell = np.array([[1.0, 0.0, 0.0], [xy, height, 0.0], [xz, slope, np.sqrt(1 - xz**2 - slope**2)]])
    lengths = rng.uniform(0.3, 2, 3) if size == "small" else rng.uniform(3, 10, 3)
    if size in ("vacuum", "slab"):
        lengths[rng.integers(3)] = 1e6
    elif size == "thin":
        lengths[rng.integers(3)] *= rng.choice([0.02, 0.1, 0.2])
    cell *= lengths[:, None]
    if "rotated" in orientation:
        rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        cell = cell @ rotation * np.sign(np.linalg.det(rotation))
    if "mirrored" in orientation:
        cell[0] *= -1  # left-handed
    return cell


def make_positions(rng: np.random.Generator, atoms: int, cell: np.ndarray, layout: str, slab: bool) -> np.ndarray:
    """Positions in or next to the cell; of a slab, within 5 angstrom of the faces in its vacuum."""
    if layout == "tiny":
        return rng.choice([-1e-50, 0.0, 1e-50], (atoms, 3))
    if layout == "cluster":
        return rng.uniform(0, 1, 3) @ cell + rng.normal(size=(atoms, 3))
    fractional = rng.choice(BOUNDARY, (atoms, 3)) if layout == "boundary" else rng.uniform(0, 1, (atoms, 3))
    flat = {"line": 2, "plane": 1}.get(layout, 0)
    fractional[:, rng.permutation(3)[:flat]] = rng.choice(BOUNDARY)
    if slab:
        vacuum = np.linalg.norm(cell, axis=1) > 1e5
        fractional[:, vacuum] = (fractional[:, vacuum] - 0.5) * 1e-5
    if layout == "coincident" and atoms:
        fractional = fractional[rng.integers(0, (atoms + 1) // 2, atoms)]
    return fractional @ cell


def make_system(seed: int, atoms: int, pbc: tuple[bool, bool, bool], kind: dict) -> System:
    """The system of some categories; the cutoff is lowered until a search by brute force is quick."""
    rng = np.random.default_rng(seed)
    periodic, cutoff, shift = np.array(pbc), kind["cutoff"], kind["shift"]
    cell = make_cell(rng, kind["shape"], kind["size"], kind["orientation"])
    positions = make_positions(rng, atoms, cell, kind["layout"], kind["size"] == "slab")
    count = {"near": 3, "negative": 3, "far": 10_000, "scattered": 10_000}.get(shift, 0)
    count = np.minimum(count, 1e9 / np.linalg.norm(cell, axis=1)) * (periodic | (shift == "scattered"))
    positions = positions + np.round(rng.uniform(-count, count, (atoms, 3))) @ cell
    if shift == "negative" and atoms:
        positions = positions - positions.max(0) - rng.uniform(0, 10, 3)
    elif shift == "distant":
        positions = positions + rng.uniform(-1, 1, 3) * 10.0 ** rng.integers(5, 10)

    if kind["spare"] == "zero":
        cell[~periodic] = 0.0
    elif kind["spare"] == "parallel":
        cell[~periodic] = 2 * cell[np.argmax(periodic)]
    complete = complete_cell(cell, periodic)
    inverse, volume = np.linalg.inv(complete), abs(np.linalg.det(complete))
    ball = (0, 2, np.pi, 4 / 3 * np.pi)[periodic.sum()]
    for _ in range(200):
        images = np.prod(2 * image_range(inverse, periodic, cutoff) + 1)
        found = atoms**2 * ball * cutoff ** periodic.sum() / volume
        if images <= IMAGES and atoms**2 * images <= DISTANCES and found <= FOUND:
            break
        cutoff *= 0.9
    return System(positions, cell, periodic, float(cutoff))


def systems(max_atoms: int = 40) -> st.SearchStrategy[System]:
    """Periodic, partly periodic and open systems of every combination of the categories."""
    atoms = st.integers(min(1, max_atoms), min(2, max_atoms)) | st.integers(0, max_atoms)
    kind = st.fixed_dictionaries({name: st.sampled_from(choices) for name, choices in CATEGORIES.items()})
    pbc = st.tuples(st.booleans(), st.booleans(), st.booleans())
    return st.builds(make_system, seed=st.integers(0, 2**32 - 1), atoms=atoms, pbc=pbc, kind=kind)
