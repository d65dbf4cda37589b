# SPDX-License-Identifier: Apache-2.0
"""Creates separate Python environments, because two clients share the package name `rocketmq`."""

import sys
from pathlib import Path
from typing import Final

from cometmq.peers.java.maven import cache_entry
from cometmq.peers.processes import run_to_end

GRPC_REQUIREMENT: Final = "rocketmq-python-client==5.1.2"
_INSTALL_TIMEOUT_S: Final = 300


def environment(name: str, *pip_arguments: str) -> Path:
    """Return the interpreter of an environment with only these packages; created on first use."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with cache_entry(f"{name}-{version}") as (folder, complete):
        if not complete:
            run_to_end([sys.executable, "-m", "venv", str(folder)], timeout_s=_INSTALL_TIMEOUT_S)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            run_to_end([*pip, *pip_arguments], timeout_s=_INSTALL_TIMEOUT_S)
    return folder / "bin" / "python"


def grpc_client_python() -> Path:
    """Return an interpreter with the official client for 5.x servers."""
    return environment("grpcclient", GRPC_REQUIREMENT)
