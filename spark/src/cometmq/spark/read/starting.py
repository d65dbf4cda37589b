# SPDX-License-Identifier: Apache-2.0
"""Resolves where reading starts and ends: offsets, timestamps, or the offsets of a group.

Precedence, as in Spark's Kafka source: one timestamp for all queues, then timestamps per queue,
then offsets. A consumer group takes precedence over offsets.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.errors import OffsetMissing, OptionError
from cometmq.spark.options.definitions import NothingNewer, Options
from cometmq.spark.options.offsets_json import EARLIEST, LATEST, Queue, from_text

Ends = Mapping[Queue, tuple[int, int]]
"""First offset and exclusive end of each queue."""

_EARLIEST_WORD: Final = "earliest"
_LATEST_WORD: Final = "latest"
_NUMBERS: Final = {EARLIEST: _EARLIEST_WORD, LATEST: _LATEST_WORD}


def starting_offsets(
    metadata: Metadata, options: Options, ends: Ends, *, default: str
) -> dict[Queue, int]:
    """Resolve the start of each queue; queues that the options do not name use `default`."""
    if options.starting_timestamp is not None:
        moments: dict[Queue, int] = dict.fromkeys(ends, options.starting_timestamp)
        return _at_moments(metadata, options, ends, moments, default=default)
    if options.starting_offsets_by_timestamp:
        source = "option `startingOffsetsByTimestamp`"
        moments = _known(
            from_text(options.starting_offsets_by_timestamp, source=source, lowest=0), ends, source
        )
        return _at_moments(metadata, options, ends, moments, default=default)
    if options.starting_offsets_from_group:
        committed = metadata.committed(options.starting_offsets_from_group, ends)
        return {queue: committed.get(queue, first) for queue, (first, _) in ends.items()}
    return _offsets(options.starting_offsets or default, ends, "startingOffsets", default)


def check_starts(starts: Mapping[Queue, int], ends: Ends) -> None:
    """Raise OffsetMissing if a queue ends before its start."""
    for queue, start in starts.items():
        end = ends[queue][1]
        if start > end:
            raise OffsetMissing(f"{queue} ends at {end}, before the start {start}")


def ending_offsets(metadata: Metadata, options: Options, ends: Ends) -> dict[Queue, int]:
    source = "option `endingOffsetsByTimestamp`"
    if options.ending_timestamp is not None:
        moments: dict[Queue, int] = dict.fromkeys(ends, options.ending_timestamp)
    elif options.ending_offsets_by_timestamp:
        moments = _known(
            from_text(options.ending_offsets_by_timestamp, source=source, lowest=0), ends, source
        )
    else:
        return _offsets(options.ending_offsets, ends, "endingOffsets", _LATEST_WORD)
    found = {queue: end for queue, (_, end) in ends.items()}
    for queue, moment in moments.items():
        found[queue] = metadata.offset_at(queue, moment, ends[queue])
    return found


def _at_moments(
    metadata: Metadata, options: Options, ends: Ends, moments: Mapping[Queue, int], *, default: str
) -> dict[Queue, int]:
    found = _offsets(default, ends, "startingOffsets", default)
    for queue, moment in moments.items():
        end = ends[queue][1]
        offset = metadata.offset_at(queue, moment, ends[queue])
        if offset >= end and options.starting_offsets_by_timestamp_strategy is NothingNewer.ERROR:
            raise OffsetMissing(
                f"no message of {queue} was stored at {moment} ms or later; set the option "
                "`startingOffsetsByTimestampStrategy`=latest to start at its end"
            )
        found[queue] = offset
    return found


def _offsets(text: str, ends: Ends, option: str, default: str) -> dict[Queue, int]:
    """Resolve the offsets of an option; queues that it does not name use `default`."""
    words: dict[str, Callable[[Queue], int]] = {
        _EARLIEST_WORD: lambda queue: ends[queue][0],
        _LATEST_WORD: lambda queue: ends[queue][1],
    }
    word = text.strip().lower()
    if word in words:
        return {queue: words[word](queue) for queue in ends}
    source = f"option `{option}`"
    if not word.startswith("{"):
        raise OptionError(f"{source}={text!r}: must be `earliest`, `latest` or offsets as JSON")
    lowest = EARLIEST if option == "startingOffsets" else LATEST
    found = {queue: words[default](queue) for queue in ends}
    given = from_text(text, source=source, lowest=lowest)
    for queue, offset in _known(given, ends, source).items():
        found[queue] = words[_NUMBERS[offset]](queue) if offset in _NUMBERS else offset
    return found


def _known(offsets: Mapping[Queue, int], ends: Ends, source: str) -> dict[Queue, int]:
    """Reject queues that are not being read: their names are probably misspelled."""
    for queue in offsets:
        if queue not in ends:
            raise OptionError(f"{source}: queue {queue} is not part of this read")
    return dict(offsets)
