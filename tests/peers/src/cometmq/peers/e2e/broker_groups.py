# SPDX-License-Identifier: Apache-2.0
"""Reads the state of BrokerGroup objects."""

from typing import Any


def conditions(group: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions by type; there are none before the operator's first pass."""
    return {one["type"]: one for one in group.get("status", {}).get("conditions", ())}


def is_ready(group: dict[str, Any]) -> bool:
    """Return whether the group matches its current spec."""
    found, generation = conditions(group), group["metadata"]["generation"]
    wanted = {"Ready": "True", "Progressing": "False"}
    return all(
        (one := found.get(type_, {})).get("observedGeneration") == generation
        and one["status"] == status
        for type_, status in wanted.items()
    )
