#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# java-image.sh NAME BASE_IMAGE: make an image of the official Java client and its load
# (tests/peers/javaclient). The base image must have Java. Installs a JDK and Maven if they are missing, as
# root; `make setup` must have run.
set -euo pipefail
name=${1:?usage: java-image.sh NAME BASE_IMAGE}
base=${2:?usage: java-image.sh NAME BASE_IMAGE}
cd "$(dirname "$0")/../.."
missing=()
command -v javac >/dev/null || missing+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || missing+=(maven)
if [ ${#missing[@]} -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
.venv/bin/python - "$context/client" <<'TEXT'
import shutil
import sys
from pathlib import Path

from cometmq.peers.clients.javaclient import client_class_path
from cometmq.peers.java.maven import ROCKETMQ_VERSION

target = Path(sys.argv[1])
target.mkdir()
for jar in client_class_path(ROCKETMQ_VERSION).split(":"):
    shutil.copy(jar, target)
TEXT
printf 'FROM %s\nCOPY client /opt/client\nUSER 10001:10001\n' "$base" >"$context/Dockerfile"
DOCKER_BUILDKIT=0 docker build --quiet --network=none --tag "$name" "$context" >/dev/null 2>"$context/log" ||
    { cat "$context/log" >&2; exit 1; }
