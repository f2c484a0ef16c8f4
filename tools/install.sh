#!/bin/sh
# install.sh ENVIRONMENT LOCK: makes the virtual environment ENVIRONMENT, and installs the versions in
# LOCK and, in editable mode, the checkout; does nothing if that is done already.
#
# An environment is made anew if an earlier call did not finish, if its Python does not run, or if it
# was moved. One that runs but was made otherwise, or from other versions, gets ours on top.
set -e
environment=$1
lock=$2
python=$environment/bin/python
started=$environment/.installing # there while a call is not finished
stamp=$environment/.installed    # written last: what was installed, and where

contents() { echo "$PWD/$environment" && cat "$lock" pyproject.toml; }
runs() { "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }
moved() { [ -f "$stamp" ] && read -r place <"$stamp" && [ "$place" != "$PWD/$environment" ]; }
pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }

if [ -e "$started" ] || ! runs || moved; then
    found=$(/bin/sh tools/find_python.sh) || exit 1
    echo "Making $environment with $found; this takes a few minutes." >&2
    rm -rf "$environment"
    mkdir -p "$environment"
    : >"$started"
    "$found" -m venv "$environment"
elif [ -f "$stamp" ] && [ "$(contents)" = "$(cat "$stamp")" ]; then
    exit 0
fi

: >"$started"
rm -f "$stamp"
pip install --quiet --requirement "$lock"
pip install --quiet --no-deps --no-build-isolation --editable .
conflicts=$(pip check) || { echo "$conflicts" >&2; exit 1; }
contents >"$stamp"
rm "$started"
echo "$environment is ready." >&2
