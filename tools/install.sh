#!/bin/sh
# install.sh ENVIRONMENT LOCK: makes the virtual environment ENVIRONMENT, and installs the versions in
# LOCK and, in editable mode, the checkout; does nothing if that is done already.
#
# The stamp is written last and holds what the environment was made from. Without a stamp, or if its
# Python no longer runs, an environment is half-made or broken, and is made anew.
set -e
environment=$1
lock=$2
stamp=$environment/.installed
python=$environment/bin/python
place= # where the environment was made: its scripts hold that path

made_from() { echo "$PWD/$environment" && cat "$lock" pyproject.toml; }

runs() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

if [ -f "$stamp" ] && runs; then
    if [ "$(made_from)" = "$(cat "$stamp")" ]; then exit 0; fi
    read -r place <"$stamp"
fi

if [ "$place" != "$PWD/$environment" ]; then
    found=$(/bin/sh tools/find_python.sh) || exit 1
    echo "Making $environment with $found" >&2
    "$found" -m venv --clear "$environment"
fi

rm -f "$stamp"
pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }
pip install --quiet --requirement "$lock"
pip install --quiet --no-deps --no-build-isolation --editable .
pip check
made_from >"$stamp"
echo "$environment is ready." >&2
