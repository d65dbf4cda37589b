#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install the wheels beside this script into a new environment: install.sh FOLDER PYTHON_VERSION
set -eu
target=$1
context=$(dirname "$0")
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$2" ]; then
    echo "the base image has Python $found, but the wheels are for $2: make images PYTHON=..." >&2
    exit 1
fi
python3 -m venv /tmp/installer
python3 -m venv --without-pip "$target"
/tmp/installer/bin/python -m pip --quiet --python "$target/bin/python" install --no-compile --no-deps \
    --no-index --find-links "$context/wheels" --require-hashes --requirement "$context/requirements.txt"
# The root file system is read-only, so modules are compiled now. Unchecked hashes: the compiled files
# contain no time stamp.
PYTHONHASHSEED=0 "$target/bin/python" -m compileall -q -j 1 --invalidation-mode unchecked-hash "$target/lib"
rm -rf /tmp/installer
