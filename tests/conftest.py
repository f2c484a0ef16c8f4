"""What every test runs under: eight virtual CPU devices, strict types, checked shapes.

JAX reads its settings when it is imported, so they are put into the environment here, before any
test or package of ours is. Subprocesses and pytest-xdist's workers inherit them.

Compiled programs are kept between runs in .pytest_cache/jax; JAX's key for them covers the program,
its versions, its devices and the processor. JAX_ENABLE_COMPILATION_CACHE=0 turns that off.

jax-md is the exception: it does not import under strict promotion (0.2.29 adds int64 to float32 at
the top of `rigid_body`), so its modules are executed under JAX's defaults. What our tests call in it
still runs strictly; code that cannot needs `jax.numpy_dtype_promotion("standard")` around the call.

Shapes and types in annotations are checked by jaxtyping and beartype, in our packages only, through
an import hook. The packages must be importable from a folder on sys.path (`pythonpath` in
pyproject.toml): the hook does not see what only the finder of an editable install knows.
"""

import atexit
import os
import shutil
import sys
import tempfile
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("janus_jax", "md", "partition", "pallas_kernels")
DEVICES = "--xla_force_host_platform_device_count=8"

early = sorted(name for name in ("jax", *PACKAGES) if name in sys.modules)
if early:
    raise RuntimeError(f"{', '.join(early)} imported before tests/conftest.py could set up JAX: find the pytest plugin")

# Nothing a test reads may come from a cache that other code has filled, and none may fill the user's.
os.environ["JANUS_JAX_CACHE"] = cache = tempfile.mkdtemp(prefix="janus-jax-tests-")
atexit.register(shutil.rmtree, cache, ignore_errors=True)

if DEVICES not in os.environ.get("XLA_FLAGS", "").split():
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jaxtyping  # noqa: E402

jaxtyping.install_import_hook(PACKAGES, "beartype.beartype")


class DefaultPromotionLoader(SourceFileLoader):
    """Executes a module under JAX's default promotion rules."""

    def exec_module(self, module):
        import jax

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            super().exec_module(module)


class JaxMDFinder:
    """Finds jax_md as usual, and gives it the loader above."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "jax_md":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = DefaultPromotionLoader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, JaxMDFinder)


LONG = ("test_processes", "test_notebooks", "test_demo_trains", "from_the_command_line_to_its_report", "test_resume")
"""Begun first, so that no worker is left with one of them when the other has nothing to do."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))
