# SPDX-License-Identifier: Apache-2.0
"""The catalogue of changes."""

from typing import Final

from cometmq.insight.changes import definitions, deletions, groups, messages, moves, topics
from cometmq.insight.changes.change import Change

CHANGES: Final[tuple[type[Change], ...]] = (
    *topics.CHANGES,
    *deletions.CHANGES,
    *groups.CHANGES,
    *moves.CHANGES,
    *messages.CHANGES,
    *definitions.CHANGES,
)
