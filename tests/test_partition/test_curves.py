"""Codes along space-filling curves: Hilbert's against an independent package, Morton's against a loop over bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hilbertcurve.hilbertcurve import HilbertCurve

from partition import curves

BITS = (1, 2, 3, 7, 10, 11, 20, 21)


def some_cells(bits, count=100):
    random = np.random.default_rng(bits).integers(0, 2**bits, (count, 3), np.uint32)
    corners = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, -1).T * (2**bits - 1)
    return np.concatenate([random, corners.astype(np.uint32)])


@pytest.mark.parametrize("bits", BITS)
def test_hilbert_codes_are_those_of_an_independent_package(bits):
    cells = some_cells(bits)
    expected = [HilbertCurve(bits, 3).distance_from_point(cell) for cell in cells.tolist()]
    assert curves.join(*curves.hilbert(cells, bits)).tolist() == expected


@pytest.mark.parametrize("bits", BITS)
def test_morton_codes_interleave_bits_with_x_first(bits):
    cells = some_cells(bits)
    expected = [sum((c >> k & 1) << (3 * k + 2 - axis) for axis, c in enumerate(cell) for k in range(bits))
                for cell in cells.tolist()]  # fmt: skip
    assert curves.join(*curves.morton(cells, bits)).tolist() == expected


@pytest.mark.parametrize("bits", [1, 10, 21])
@pytest.mark.parametrize("curve", curves.CURVES)
def test_jax_gives_the_codes_of_numpy(curve, bits):
    fractional = np.random.default_rng(0).uniform(-0.1, 1.1, (1000, 3))

    def codes(x):
        return curves.CURVES[curve](curves.quantize(x, bits), bits)

    for x in (fractional, fractional.astype(np.float32)):
        host, device = codes(x), jax.jit(codes)(jnp.asarray(x))
        for a, b in zip(host, device, strict=True):
            assert a.dtype == b.dtype == np.uint32
            assert (a == np.asarray(b)).all()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_consecutive_hilbert_cells_share_a_face_and_every_cell_is_visited(bits):
    cells = np.indices((2**bits,) * 3).reshape(3, -1).T.astype(np.uint32)
    codes = curves.join(*curves.hilbert(cells, bits))
    order = np.argsort(codes)
    assert (codes[order] == np.arange(8**bits)).all()
    assert (np.abs(np.diff(cells[order].astype(int), axis=0)).sum(1) == 1).all()


@pytest.mark.parametrize("bits", [1, 5, 21])
def test_coordinates_at_and_beyond_the_faces_are_in_the_outermost_cells(bits):
    x = np.array([0.0, -0.0, -1e-300, -5.0, 2.0**-bits, 1 - 2**-53, 1.0, 1.5, 1e30])
    expected = [0, 0, 0, 0, 1] + 4 * [2**bits - 1]
    assert curves.quantize(np.repeat(x[:, None], 3, 1), bits).tolist() == [[cell] * 3 for cell in expected]


def test_scaled_cells_are_cubes():
    edges = np.array([2.0, 8.0, 4.0])
    x = np.random.default_rng(0).uniform(0, 1, (100, 3))
    assert (curves.quantize(x, 6, edges / 8) == np.floor(x * edges / 8 * 64)).all()


def test_code_and_number_of_an_atom_fill_64_bits():
    for atoms in (0, 1, 2, 3, 1000, 2**20, 2**20 + 1, 10**8, 2**31 - 1):
        number = max((max(atoms, 1) - 1).bit_length(), 1)
        bits = curves.bits_for(atoms)
        assert 3 * bits + number <= 64
        assert bits == curves.MOST_BITS or 3 * (bits + 1) + number > 64
    assert (curves.bits_for(2), curves.bits_for(3), curves.bits_for(2**31 - 1)) == (21, 20, 11)


@pytest.mark.parametrize("bits", [-1, 0, 22, 32])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match=f"^{bits} bits an axis; allowed: 1 to 21$"):
        curves.quantize(np.zeros((1, 3)), bits)
