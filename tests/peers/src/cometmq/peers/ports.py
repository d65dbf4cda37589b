# SPDX-License-Identifier: Apache-2.0
"""Assigns free loopback ports that remain free while a server is down."""

from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, HOST, reserve_port

__all__ = ["HOST", "free_broker_port", "free_port"]


def free_port() -> int:
    return reserve_port()


def free_broker_port() -> int:
    return reserve_port(BROKER_NEIGHBOURS)
