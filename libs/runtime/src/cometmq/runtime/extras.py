# SPDX-License-Identifier: Apache-2.0
"""Recognises a missing optional package for groups with failover, and gives advice."""

from typing import Final

INSTALL_EXTRA: Final = (
    "groups with failover need gRPC: install cometmq[ha] or, after make run in a clone, run"
    " .venv/bin/pip install grpcio grpcio-health-checking"
)
_PACKAGES: Final = ("grpc", "grpc_health", "google", "cometmq.control", "cometmq.elector")


def needs_extra(error: ModuleNotFoundError) -> bool:
    """Return whether the missing module belongs to the extra `ha`."""
    name = error.name or ""
    return any(name == package or name.startswith(f"{package}.") for package in _PACKAGES)
