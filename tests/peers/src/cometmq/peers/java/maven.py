# SPDX-License-Identifier: Apache-2.0
"""Copies jars from Maven's default repository into the cache, once."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.peers.errors import PeerError
from cometmq.peers.paths import CACHE, DATA
from cometmq.peers.processes import run_to_end

ROCKETMQ_VERSION: Final = "4.9.4"
ROCKETMQ_5_VERSION: Final = "5.5.0"
COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_TIMEOUT_S: Final = 600
# Packages whose fields RocketMQ and netty reach into; JDK 17 closes them by default.
_OPENED: Final = ("java.nio", "java.lang", "java.util", "sun.nio.ch", "jdk.internal.ref")
JVM_OPTIONS: Final = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.security.x509=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.security.x509=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
)


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise PeerError(f"{name} is not installed: run tests/peers/install")
    return path


@contextmanager
def cache_entry(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield a folder of the cache and whether it is complete, under a lock between processes.

    The caller fills an incomplete folder; leaving the context without an exception marks the folder
    as complete.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    folder, mark = CACHE / name, CACHE / f"{name}.complete"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = mark.exists()
        if not complete:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, complete
        mark.touch()


def run_maven(*arguments: str) -> None:
    """Run Maven in batch mode; if it fails, raise an error with its output."""
    run_to_end([program("mvn"), "-q", "-B", *arguments], timeout_s=_TIMEOUT_S)


def server_class_path(version: str = ROCKETMQ_VERSION, programs: str = "servers") -> str:
    """Fetch RocketMQ's servers and tools, or its proxy, on first use; return their class path."""
    with cache_entry(f"{programs}-{version}") as (folder, complete):
        if not complete:
            run_maven(
                "-f",
                str(DATA / f"{programs}-pom.xml"),
                f"-Drocketmq.version={version}",
                COPY_GOAL,
                f"-DoutputDirectory={folder}",
                "-DincludeScope=runtime",
            )
    return class_path(folder)


def project_class_path(project: Path, version: str = ROCKETMQ_VERSION) -> str:
    """Return our project's class path with its dependencies; built on first use and on changes."""
    with cache_entry(f"{project.name}-{version}-{sources_mark(project)}") as (folder, complete):
        if not complete:
            run_maven(
                "-f",
                str(project / "pom.xml"),
                f"-Drocketmq.version={version}",
                f"-Dpeers.build={folder}",
                "package",
                COPY_GOAL,
                f"-DoutputDirectory={folder}",
                "-DincludeScope=runtime",
            )
    return class_path(folder)


def sources_mark(project: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(project.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def class_path(folder: Path) -> str:
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))
