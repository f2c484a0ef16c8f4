"""Every command that the documentation, docstrings, comments and messages name can be given as it is written there.

Commands are found by their form, so a new one is covered by itself: in backticks, on indented lines, after ": " in
messages, and behind the targets of the Makefile. Scripts that need the environments of benchmarks/peers are not run.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from janus_jax import configuration
from janus_jax.cli import data
from janus_jax.cli.main import parse, parser
from janus_jax.errors import ConfigError
from janus_jax.train.config import TrainConfig
from md.config import MdConfig

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PLACES = (
    "*.md", "docs/*.md", "benchmarks/**/*.md", "notebooks/*.ipynb", "configs/**/*.yaml", "Makefile", "tools/*",
    "janus_jax/**/*.py", "md/**/*.py", "partition/**/*.py", "benchmarks/**/*.py",
)  # fmt: skip
FORMS = (
    r"`((?:srun )?janus-jax [a-z][^`\n]*)`",
    r"`(?:[A-Z_]+=\S+ )?((?:python benchmarks/|make )[^`\n]*)`",
    r"`((?:train|evaluate|md|data|schedule|model|plan|launch) [^`\n]*--[^`\n]*)`",  # of janus-jax, without its name
    r": (janus-jax [a-z][^\"\n;]*)",  # in messages
)
WHOLE = r"^(?: {4,}|# {3,}|\t@\$\(BIN\)/)((?:srun )?janus-jax [a-z].*|python benchmarks/.*|make [a-z].*)$"
SCHEMAS = {"train": TrainConfig, "plan": TrainConfig, "demo": TrainConfig, "md": MdConfig}


def found() -> list[tuple[str, str, bool]]:
    """(file, command, whether it stands on a line of its own) of all."""
    result = []
    for path in sorted({path for place in PLACES for path in ROOT.glob(place) if path.is_file()}):
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        if name == "CHANGELOG.md":  # of versions that were
            continue
        whole = [line for line in re.findall(WHOLE, text, re.M) if path.suffix != ".py" or "make " not in line]
        result += [(name, line, True) for line in whole]
        result += [(name, line, False) for form in FORMS for line in re.findall(form, text)]
    return result


def words_of(command: str) -> list[list[str]]:
    """Words of a command without comments, redirections and brackets; of several where one word is a|b."""
    plain = re.split(r"\s#|\s>\s|\s{2,}\(", command)[0].removeprefix("srun ").removeprefix("janus-jax ")
    plain = re.sub(r"\{[^{}]*\}", "X", plain) if "={" not in plain else plain  # of f-strings
    plain = plain.replace("$(ARGS)", "").replace("key=value", "").replace(" | ", " ")
    words = shlex.split(re.sub(r"[\[\]]|\.\.\.", "", plain))
    choice = next((word for word in words if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word)), None)
    if choice is None:
        return [words]
    return [[one if word == choice else word for word in words] for one in choice.split("|")]


def missing_files(words: list[str]) -> list[str]:
    return [f"no {w}" for w in words if re.match(r"(configs|benchmarks)/.*\.(py|yaml)$", w) and not (ROOT / w).exists()]


@cache
def names_and_options(words: tuple[str, ...]) -> tuple[list[str], set[str], bool]:
    """Of the command that these words begin with: its names, its options, and whether --help works."""
    here, names = parser(), []
    for word in words:
        table = here._subparsers._group_actions[0].choices if here._subparsers else {}
        if word not in table:
            break
        here, names = table[word], [*names, word]
    with pytest.raises(SystemExit) as ended:
        here.parse_args(["--help"])
    return names, set(here._option_string_actions), ended.value.code == 0


def faults(words: list[str], whole: bool) -> list[str]:
    """What is wrong with `janus-jax WORDS`."""
    if words[0] == "launch" and "--" in words:
        at = words.index("--")
        return faults(words[:at], False) + faults(words[at + 1 :], whole)
    names, options, helps = names_and_options(tuple(words[:2]))
    if not names:
        return [f"no command {words[0]}"]
    wrong = [] if helps else ["--help fails"]
    wrong += [f"no option {word}" for word in words if word[0] == "-" and word not in options]
    try:
        if whole:
            parse(words)
        overrides = [word for word in words if "=" in word and re.match("[a-z]", word)]
        schema = MdConfig if "--md" in words else SCHEMAS.get(names[0], TrainConfig)
        if overrides and names[0] in ("data", "evaluate"):
            data.settings(overrides)
        elif overrides and names[0] != "schedule":
            configuration.validate(schema, configuration.override({}, overrides))
    except SystemExit:
        wrong.append("is refused")
    except ConfigError as error:
        wrong.append(str(error))
    return wrong + missing_files(words)


def test_commands_of_the_program(capsys):
    commands = [c for c in found() if not re.match("python|make", c[1])]
    wrong = [
        f"{file}: {command}: {fault}"
        for file, command, whole in commands
        for words in words_of(command)
        for fault in faults(words, whole)
    ]
    assert wrong == [], capsys.readouterr().err
    texts = " ".join(command for _, command, _ in commands)
    for name in ("train", "evaluate", "demo", "md", "plan", "partition", "launch", "data label", "model export"):
        assert name in texts  # else the search is broken
    assert len(commands) > 50


def test_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    asked = {words_of(command)[0][1] for _, command, _ in found() if command.startswith("make ")}
    assert asked >= {"demo", "test", "install", "lint"}
    assert asked <= set(targets)


def test_no_script_hides_a_package():
    # Python puts a script's folder first: benchmarks/md.py would be taken for the package by the others beside it.
    names = {path.stem for path in [*BENCHMARKS.rglob("*.py"), *(ROOT / "tools").glob("*.py")]}
    assert {name for name in names if importlib.util.find_spec(name)} == set()


HELP = """
import contextlib, io, json, os, runpy, sys
texts = {}
for script in sys.argv[1:]:
    sys.path[0], sys.argv, out = os.path.dirname(script), [script, "--help"], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    texts[script] = out.getvalue()
    for name, module in list(sys.modules.items()):  # those beside the script
        if (getattr(module, "__file__", None) or "").startswith(sys.path[0]):
            del sys.modules[name]
print(json.dumps(texts))
"""


def test_benchmarks_have_the_help_and_options_that_are_documented():
    commands = [command for _, command, _ in found() if command.startswith("python benchmarks/")]
    scripts = sorted({command.split()[1] for command in commands})
    assert {f"benchmarks/{path.name}" for path in BENCHMARKS.glob("*.py")} <= set(scripts)
    done = subprocess.run([sys.executable, "-c", HELP, *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout.splitlines()[-1])
    assert all(text.startswith("usage:") for text in texts.values())
    wrong = [
        f"{command}: no option {option}"
        for command in commands
        for option in re.findall(r"--[a-z-]+", command)
        if not re.search(rf"{option}\b", texts[command.split()[1]])
    ]
    assert wrong == []
