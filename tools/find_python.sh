#!/bin/sh
# Prints the path of a Python that janus-jax runs on, or says in one sentence what to install.
#
# Order: $PYTHON if set; python3.14, 3.13, 3.12 and python3 on PATH; the versions pyenv installed,
# first the one we develop on (3.12); uv, which may download one. A candidate counts only if it runs
# and can make a virtual environment: a pyenv shim without a version behind it does not run, and
# Debian's python without python3-venv has no ensurepip.
# Uses no program but the shell's own until one is found, so that an empty PATH gets the sentence too.

# If $1 serves, prints its path (of the Python behind it, if it is a shim or of an environment) and ends.
accept() {
    if found=$("$1" -c '
import sys, venv, ensurepip, sysconfig
free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
if sys.implementation.name != "cpython" or free_threaded or not (3, 12) <= sys.version_info < (3, 15):
    sys.exit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)
' 2>/dev/null); then
        printf '%s\n' "$found"
        exit 0
    fi
}

if [ -n "$PYTHON" ]; then
    accept "$PYTHON"
    echo "PYTHON=$PYTHON is not a Python 3.12, 3.13 or 3.14 that can make virtual environments: name another, or leave PYTHON out." >&2
    exit 1
fi

# Every match on PATH, not only the first: a shim that fails may hide one that works.
(
    IFS=:
    set -f
    for name in python3.14 python3.13 python3.12 python3; do
        for folder in $PATH; do
            if [ -x "$folder/$name" ]; then accept "$folder/$name"; fi
        done
    done
    exit 1
) && exit 0

for minor in 12 13 14; do
    for root in "$PYENV_ROOT" "$HOME/.pyenv"; do
        for candidate in "$root"/versions/3."$minor".*/bin/python; do
            if [ -x "$candidate" ]; then accept "$candidate"; fi
        done
    done
done

if command -v uv >/dev/null 2>&1; then
    if candidate=$(uv python find --no-project '>=3.12,<3.15' 2>/dev/null); then accept "$candidate"; fi
    uv python install 3.12 >&2
    if candidate=$(uv python find --no-project 3.12 2>/dev/null); then accept "$candidate"; fi
fi

echo "No Python 3.12, 3.13 or 3.14 with its venv module was found: install one (\"apt install python3-venv\" where the system has such a version, else \"pyenv install 3.12\" or uv) and run make again." >&2
exit 1
