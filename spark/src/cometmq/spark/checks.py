# SPDX-License-Identifier: Apache-2.0
"""Validates combinations of options before any connection is opened."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_group
from cometmq.spark.cluster.connection import LinkSettings
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.cluster.pulling import filter_of
from cometmq.spark.cluster.topics import NameServers
from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import Options, Table
from cometmq.spark.options.offsets_json import (
    EARLIEST,
    LATEST,
    Queue,
    assigned_from_text,
    from_text,
    to_text,
)
from cometmq.spark.options.where import parse_where


def check_common(options: Options) -> None:
    if not options.name_server:
        raise OptionError("option `nameServer` is missing: set it to `host:port;host:port`")
    LinkSettings.of(options)


def check_read(options: Options) -> None:
    check_common(options)
    given = {
        "subscribe": options.subscribe,
        "topic": options.topic,
        "subscribePattern": options.subscribe_pattern,
        "assign": options.assign,
    }
    named = [f"`{name}`" for name, value in given.items() if value]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise OptionError(
            f"give exactly one of `subscribe`, `subscribePattern`, `assign`, not {found}"
        )
    if options.subscribe_pattern:
        try:
            re.compile(options.subscribe_pattern)
        except re.error as error:
            raise OptionError(f"option `subscribePattern`: {error}") from error
    if options.assign:
        assigned_from_text(options.assign, source="option `assign`")
    _check_ranges(options)
    filter_of(options)
    for name, group in (
        ("group", options.group),
        ("commitGroup", options.commit_group),
        ("startingOffsetsFromGroup", options.starting_offsets_from_group),
    ):
        if group:
            _check_group(name, group)


def check_batch(options: Options) -> None:
    check_read(options)
    if options.starting_offsets.strip().lower() == "latest":
        raise OptionError(
            "option `startingOffsets`=latest reads nothing in a batch: use `earliest` or offsets"
        )


def check_stream(options: Options) -> None:
    check_read(options)
    if parse_where(options.where).has_times:
        raise OptionError(
            "option `where`: conditions on store_ts apply to batches only; a stream starts at"
            " `startingTimestamp`"
        )
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise OptionError(
            f"option `minOffsetsPerTrigger`={low} exceeds `maxOffsetsPerTrigger`={high}"
        )


def check_write(options: Options) -> None:
    check_common(options)
    if options.table is not Table.MESSAGES:
        raise OptionError(f"table `{options.table}` is read-only: only `messages` can be written")


def _check_ranges(options: Options) -> None:
    """Check where a read starts and ends, as far as the text of the options shows it."""
    starts = _offsets("startingOffsets", options.starting_offsets or "earliest", lowest=EARLIEST)
    ends = _offsets("endingOffsets", options.ending_offsets, lowest=LATEST)
    _check_order("startingOffsets", starts, "endingOffsets", ends)
    start_ms, end_ms = (
        from_text(text, source=f"option `{name}`", lowest=0) if text else {}
        for name, text in (
            ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
            ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
        )
    )
    _check_order("startingOffsetsByTimestamp", start_ms, "endingOffsetsByTimestamp", end_ms)
    first, last = options.starting_timestamp, options.ending_timestamp
    if first is not None and last is not None and first > last:
        raise OptionError(f"option `startingTimestamp`={first} is after `endingTimestamp`={last}")


def _offsets(name: str, text: str, *, lowest: int) -> dict[Queue, int]:
    """Return the offsets that an option gives as JSON."""
    word = text.strip().lower()
    if word.startswith("{"):
        return from_text(text, source=f"option `{name}`", lowest=lowest)
    if word != "latest" and (word, lowest) != ("earliest", EARLIEST):
        words = "`earliest`, `latest`" if lowest == EARLIEST else "`latest`"
        raise OptionError(f"option `{name}`={text!r}: must be {words} or offsets as JSON")
    return {}


def _check_order(
    start_name: str, starts: Mapping[Queue, int], end_name: str, ends: Mapping[Queue, int]
) -> None:
    for queue, start in starts.items():
        end = ends.get(queue, LATEST)
        if 0 <= end < start:
            raise OptionError(
                f"options `{start_name}` and `{end_name}`: {queue} ends at {end}, before its start"
                f" {start}"
            )


def _check_group(name: str, group: str) -> None:
    try:
        check_group(group)
    except InvalidArgument as error:
        raise OptionError(f"option `{name}`: {error}") from None


_NAMED_MAX: Final = 3
"""Queues named in an error; a cluster may have thousands."""
_ROWS_MAX: Final = 8
"""Queues up to which an error contains the complete option."""


def check_load(options: Options) -> None:
    """Raise SourceError unless the name server answers and the offsets name every queue to read."""
    if options.table is not Table.MESSAGES:
        check_common(options)
        with NameServers(options) as names:
            names.brokers()
        return
    check_read(options)
    given = {name: text for name, text in _offset_options(options) if text.startswith("{")}
    with Metadata(options) as metadata:
        # A stream goes on with its checkpoint even if its topic is gone, so that is no error here.
        queues = metadata.queues(must_exist=bool(given))
        if not queues:
            metadata.names.brokers()  # fails if the address is not that of a name server
    for name, text in given.items():
        _check_complete(name, text, queues)


def _offset_options(options: Options) -> Iterable[tuple[str, str]]:
    for name, text in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
    ):
        yield name, text.strip()


def _check_complete(name: str, text: str, queues: list[Queue]) -> None:
    source = f"option `{name}`"
    found = from_text(text, source=source)
    for queue in found:
        if queue not in set(queues):
            raise OptionError(
                f"{source}: queue {queue} is not part of this read; remove it, or add its topic "
                "to `subscribe`"
            )
    missing = [queue for queue in queues if queue not in found]
    if not missing:
        return
    named = ", ".join(str(queue) for queue in missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    raise OptionError(f"{source} leaves out {named}{more}: {_fix(name, found, missing)}")


def _fix(name: str, found: dict[Queue, int], missing: list[Queue]) -> str:
    """Describe how to complete the option."""
    is_start = name.startswith("starting")
    note = "; a stream that has a checkpoint does not need the option" if is_start else ""
    if name.endswith("Timestamp"):
        return f"give a time for every queue that is read{note}"
    number, word = (EARLIEST, "earliest") if is_start else (LATEST, "latest")
    whole = found | dict.fromkeys(missing, number)
    example = f", as in {to_text(whole)}" if len(whole) <= _ROWS_MAX else ""
    return f"name every queue that is read, with {number} for the {word}{example}{note}"
