"""What is shipped: the wheel's contents, the pinned versions, and imports that change nothing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("janus_jax", "md", "partition", "pallas_kernels")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> list[str]:
    """Names in the wheel built from a copy of the checkout; the build writes into its tree."""
    work = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, work / "tree", ignore=unwanted)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(work / "tree")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = work.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_top_level_names_of_the_wheel(wheel):
    names = {name.split("/")[0] for name in wheel}
    (metadata,) = names - set(PACKAGES)
    assert names > set(PACKAGES)
    assert re.fullmatch(r"janus_jax-[^/]*\.dist-info", metadata)


def test_wheel_holds_every_module_and_data_file(wheel):
    wanted = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    wanted |= {path for pattern in ("*.extxyz", "*.json") for path in (ROOT / "janus_jax" / "data").glob(pattern)}
    wanted |= {path for package in PACKAGES for path in (ROOT / package).glob("py.typed")}
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= set(wheel)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-oldest.lock"])
def test_lock_pins_exact_versions_and_nothing_else(lock):
    lines = (ROOT / lock).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-oldest.lock"])
def test_lock_covers_the_dependencies(lock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["xtb"]
    if lock == "requirements.lock":
        wanted += project["optional-dependencies"]["dev"]
    plain = lambda requirement: re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")  # noqa: E731
    pinned = {plain(line) for line in (ROOT / lock).read_text().splitlines()}
    assert {plain(requirement) for requirement in wanted} <= pinned


def test_no_packages_below_tests():
    # With --import-mode=importlib none is needed, and tests/test_md/__init__.py and the like could shadow packages.
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.core
def test_import_configures_nothing():
    code = f"""
import os, jax
before = dict(jax.config.values), dict(os.environ)
import {", ".join(PACKAGES)}
assert (dict(jax.config.values), dict(os.environ)) == before
assert not jax._src.xla_bridge.backends_are_initialized()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
