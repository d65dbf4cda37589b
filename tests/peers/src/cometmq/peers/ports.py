# SPDX-License-Identifier: Apache-2.0
"""Assigns free loopback ports that remain free while a server is down."""

from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, HOST, reserve_port

__all__ = ["HOST", "free_broker_port", "free_port", "members_at"]


def free_port() -> int:
    return reserve_port()


def free_broker_port() -> int:
    return reserve_port(BROKER_NEIGHBOURS)


def members_at(ports: list[int]) -> str:
    """Return the setting that names the members of a group at these ports."""
    return ";".join(f"{ordinal}={HOST}:{port}" for ordinal, port in enumerate(ports))
