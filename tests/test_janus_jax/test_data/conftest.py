"""What the tests of readers share: a cache of their own, and frames written by hand."""

import pytest

from janus_jax.data.sources import open_source


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JANUS_JAX_CACHE", str(tmp_path / ".cache"))


@pytest.fixture
def read(tmp_path):
    """The source for a text of frames; its bytes are written as they are."""

    def opened(*texts):
        (tmp_path / "hand.xyz").write_bytes("".join(texts).encode())
        return open_source(tmp_path / "hand.xyz")

    return opened
