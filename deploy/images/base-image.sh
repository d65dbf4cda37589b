#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Make a base image from Debian packages, for machines without access to an image registry:
#   base-image.sh NAME [PACKAGE...]     Debian 12 with Python 3.11, and the packages
# Needs root, debootstrap and a Docker engine. An image that exists is kept.
set -euo pipefail
name=${1:?usage: base-image.sh NAME [PACKAGE...]}
shift
if docker image inspect "$name" >/dev/null 2>&1; then
    exit 0
fi
if ! command -v debootstrap >/dev/null; then
    echo "base-image.sh: debootstrap is missing: apt-get install debootstrap" >&2
    exit 2
fi
packages=$(IFS=,; echo "ca-certificates,python3,python3-venv${*:+,$*}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! debootstrap --variant=minbase --include="$packages" bookworm "$folder/root" >"$folder/log" 2>&1; then
    tail -20 "$folder/log" "$folder/root/debootstrap/debootstrap.log" >&2
    exit 1
fi
rm -rf "$folder"/root/var/cache/apt/* "$folder"/root/var/lib/apt/lists/* "$folder"/root/var/log/* \
    "$folder"/root/usr/share/{doc,man,locale,info}/*
tar -C "$folder/root" --sort=name -cf "$folder/root.tar" .
docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    "$folder/root.tar" "$name" >/dev/null
