"""What a source is, and sources made of others."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from ase import Atoms
from ase.io.jsonio import encode


@runtime_checkable
class Source(Protocol):
    """Structures by number, 0 to len - 1."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Atoms:
        """Raises DataError, naming file, frame and field, if it cannot be read."""
        ...

    def name(self, index: int) -> str:
        """File and frame number, for people."""
        ...

    def fingerprint(self) -> str:
        """Hash of the content: equal content has equal fingerprints, wherever it lies."""
        ...


class FileSource:
    """A source that is one file; the file's bytes are its fingerprint."""

    path: Path

    def name(self, index: int) -> str:
        return f"{self.path}, frame {index}"

    def fingerprint(self) -> str:
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class Frames:
    """Structures already in memory.

    Args:
        name: for messages.
    """

    def __init__(self, frames: Sequence[Atoms], name: str = "structures"):
        self.frames, self._name = list(frames), name

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Atoms:
        return self.frames[index]

    def name(self, index: int) -> str:
        return f"{self._name}, frame {index}"

    def fingerprint(self) -> str:
        return digest(*(encode([f.todict(), f.calc and f.calc.results, f.info]) for f in self.frames))


class Joined:
    """Several sources one after the other."""

    def __init__(self, parts: Sequence[Source]):
        self.parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _find(self, index: int) -> tuple[Source, int]:
        k = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[k], int(index - (self._ends[k - 1] if k else 0))

    def __getitem__(self, index: int) -> Atoms:
        part, local = self._find(index)
        return part[local]

    def name(self, index: int) -> str:
        part, local = self._find(index)
        return part.name(local)

    def fingerprint(self) -> str:
        return digest(*(part.fingerprint() for part in self.parts))


class Subset:
    """Some structures of a source, by their numbers there."""

    def __init__(self, source: Source, indices: np.ndarray):
        self.source, self.indices = source, np.asarray(indices, np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Atoms:
        return self.source[int(self.indices[index])]

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def fingerprint(self) -> str:
        return digest(self.source.fingerprint(), self.indices.tobytes().hex())


def digest(*parts: str) -> str:
    """One hash of several strings."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
