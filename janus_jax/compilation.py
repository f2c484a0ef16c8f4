"""How often a jitted function has been compiled: recompilation is what users of JAX suffer from most."""

from typing import Any


def count(jitted: Any) -> int:
    """Programs compiled so far for this function, one per combination of shapes and static arguments."""
    return jitted._cache_size()
