"""Space-filling curves: Hilbert and Morton codes of fractional coordinates, in numpy and in JAX.

A coordinate in [0, 1) is quantised to `bits` <= 21 bits along each axis; a code has 3 * bits <= 63 bits.
Codes are computed on pairs of 32-bit words, because JAX has 64-bit integers only on request; `join` makes
one number of them. numpy and JAX give identical results for identical coordinates.

Sources: J. Skilling, Programming the Hilbert curve, AIP Conf. Proc. 707 (2004) 381; Tessera, section 3.2.
"""

import numpy as np

from partition.cell import xp

MOST_BITS = 21


def bits_for(atoms: int) -> int:
    """Bits an axis so that a code and the number of an atom fit into 64 bits together."""
    return min(MOST_BITS, (64 - max(int(atoms - 1).bit_length(), 1)) // 3)


def quantize(fractional, bits: int, scale=None):
    """Cells [..., 3] (uint32) of fractional coordinates; those outside [0, 1) are put into the first or last cell.

    Args:
        fractional: [..., 3].
        bits: of an axis, at most 21.
        scale: per axis [3]; lengths relative to the largest make the cells cubes, which is the variant of
            the paper's Morton code (appendix C). Without it every axis has all 2^bits cells.
    """
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"{bits} bits an axis; allowed: 1 to {MOST_BITS}")
    np_ = xp(fractional)
    if scale is not None:
        fractional = fractional * np_.asarray(scale, fractional.dtype)[(None,) * (fractional.ndim - 1)]
    cells = np_.floor(fractional * 2**bits)
    return np_.clip(cells, 0, 2**bits - 1).astype(np_.uint32)


def morton(cells, bits: int):
    """Morton code (high word, low word) of cells [..., 3] (uint32)."""
    return _interleave(cells[..., 0], cells[..., 1], cells[..., 2])


def hilbert(cells, bits: int):
    """Hilbert code (high word, low word) of cells [..., 3] (uint32): neighbours in the code are neighbours in space."""
    return _interleave(*_transpose(cells[..., 0], cells[..., 1], cells[..., 2], bits))


CURVES = {"hilbert": hilbert, "morton": morton}


def join(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """One 64-bit number (numpy) of two 32-bit words."""
    return np.asarray(high, np.uint64) << np.uint64(32) | np.asarray(low, np.uint64)


def _transpose(x, y, z, bits: int):
    """Skilling's transposed Hilbert index: three words whose interleaved bits are the code."""
    one = np.uint32(1)
    axes = [x, y, z]
    for level in range(bits - 1, 0, -1):
        below = np.uint32((1 << level) - 1)
        for k in range(3):
            # all ones where the bit of this level is set: invert the low bits of x there, else swap them with axis k
            invert = np.uint32(0) - (axes[k] >> np.uint32(level) & one)
            swap = (axes[0] ^ axes[k]) & below & ~invert
            axes[0] = axes[0] ^ swap ^ (invert & below)
            if k:
                axes[k] = axes[k] ^ swap
    axes[1] = axes[1] ^ axes[0]
    axes[2] = axes[2] ^ axes[1]
    # Gray decode: a bit of the last word flips all lower ones
    flips = axes[2] * np.uint32(0)
    for level in range(bits - 1, 0, -1):
        flips = flips ^ ((np.uint32(0) - (axes[2] >> np.uint32(level) & one)) & np.uint32((1 << level) - 1))
    return [axis ^ flips for axis in axes]


def _spread(x):
    """The low ten bits of `x` at every third bit."""
    for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
        x = (x | x << np.uint32(shift)) & np.uint32(mask)
    return x


def _interleave(x, y, z):
    """Bits of the three words in turn, x first: 63 bits as (high, low)."""
    ten = np.uint32(1023)

    def part(level):
        words = [word >> np.uint32(10 * level) & ten for word in (x, y, z)]
        return _spread(words[0]) << np.uint32(2) | _spread(words[1]) << np.uint32(1) | _spread(words[2])

    low, middle, top = part(0), part(1), part(2)
    return middle >> np.uint32(2) | top << np.uint32(28), low | middle << np.uint32(30)
