# SPDX-License-Identifier: Apache-2.0
"""Moves of a consumer group: what is read again or skipped, and offsets in files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.output import Cell
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import InvalidArgument
from cometmq.insight.preview import QueueMove, preview_offsets, total
from cometmq.insight.times import shown
from cometmq.remoting.bodies.queues import MessageQueue

COLUMNS: Final = (
    "Topic", "Broker", "Queue", "From", "To", "Read again", "Skipped", "First", "Last",
)  # fmt: skip
"""The columns of a preview; First and Last are the times of the messages read again or skipped."""
LINES_MAX: Final = 1_000_000
HEAD: Final = (
    "# Offsets of a consumer group: TOPIC BROKER QUEUE OFFSET; cometmq group seek --from-file"
)
_LINE: Final = re.compile(r"(\S{1,255}) (\S{1,255}) (\d{1,5}) (\d{1,19})")


def row(move: QueueMove) -> list[Cell]:
    """Return the cells of a queue in a preview."""
    queue = move.queue
    place: list[Cell] = [queue.topic, queue.broker_name, queue.queue_id]
    counts: list[Cell] = [move.committed, move.wanted, move.redelivered, move.skipped]
    return [*place, *counts, shown(move.from_ms or 0), shown(move.to_ms or 0)]


def totals(moves: Iterable[QueueMove]) -> dict[str, Cell]:
    """Return how many queues move, and how many messages are read again and skipped, None if it is
    unknown.
    """
    rows = list(moves)
    again, skipped = total(it.redelivered for it in rows), total(it.skipped for it in rows)
    return {"queues": len(rows), "read_again": again, "skipped": skipped}


async def offsets_of(
    admin: CommandAdmin, group: str, topics: Sequence[str]
) -> dict[MessageQueue, int]:
    """Return the committed offsets of a group, in all topics or in some."""

    async def ask(broker: BrokerAdmin) -> dict[MessageQueue, int]:
        table = (await broker.consumer_offsets()).offset_table
        return {
            MessageQueue(topic, broker.name, queue_id): offset
            for key, queues in table.items()
            for topic, _, owner in [key.partition("@")]
            if owner == group and (not topics or topic in topics)
            for queue_id, offset in queues.items()
        }

    answers = await admin.ask_all((await admin.masters_to_change()).values(), ask)
    return dict(sorted(pair for _, found in answers for pair in found.items()))


async def previewed(
    admin: CommandAdmin, group: str, wanted: Mapping[MessageQueue, int]
) -> list[QueueMove]:
    """Return the moves to given offsets; raise CometError, before any change, for a queue or an
    offset that does not exist.
    """
    by_topic: dict[str, dict[MessageQueue, int]] = {}
    for queue, offset in wanted.items():
        by_topic.setdefault(queue.topic, {})[queue] = offset
    found: list[QueueMove] = []
    for topic, offsets in by_topic.items():
        await admin.masters_to_change_of(topic)
        found += (await preview_offsets(admin, group, topic, offsets)).moves
    return found


def written(offsets: Mapping[MessageQueue, int]) -> str:
    """Return offsets as the text of a file."""
    lines = [
        f"{it.topic} {it.broker_name} {it.queue_id} {offset}" for it, offset in offsets.items()
    ]
    return "\n".join([HEAD, *lines]) + "\n"


def read_offsets(file: Path) -> dict[MessageQueue, int]:
    """Return the offsets in a file; raise InvalidArgument, with the line, if one is wrong."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read {file}: {error}") from error
    found: dict[MessageQueue, int] = {}
    for number, line in enumerate(lines[:LINES_MAX], 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidArgument(
                f"line {number} of {file}: {line[:80]!r} is not TOPIC BROKER QUEUE OFFSET"
            )
        queue = MessageQueue(match[1], match[2], int(match[3]))
        if queue in found:
            raise InvalidArgument(f"line {number} of {file}: the queue is named twice")
        found[queue] = int(match[4])
    if not found:
        raise InvalidArgument(f"{file} has no offsets")
    return found
