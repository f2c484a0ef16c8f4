"""One structure from a file of any format that ASE reads."""

from janus_jax.errors import StructureError


def read_structure(file: str, frame: int):
    """The frame of a file, as ASE's `Atoms`.

    Raises:
        StructureError: ASE cannot read it.
        FileNotFoundError: there is no such file.
    """
    import ase
    import ase.io
    from ase.io.formats import UnknownFileTypeError

    try:
        structure = ase.io.read(file, index=frame)
    except FileNotFoundError:
        raise
    except (UnknownFileTypeError, ValueError, IndexError, StopIteration, OSError) as error:
        why = f" ({error})" if str(error) else ""
        raise StructureError(f"{file}: ASE cannot read frame {frame}{why}") from None
    assert isinstance(structure, ase.Atoms)  # one frame was asked for
    return structure
