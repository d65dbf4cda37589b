# SPDX-License-Identifier: Apache-2.0
"""Checks the options of a read against the cluster at `load()`, before Spark plans a query.

Spark plans a batch at its first action and a stream at its start. By then the mistake is far from
the line that caused it, and offsets that leave out a queue would read less than intended.
"""

from collections.abc import Iterable
from typing import Final

from cometmq.spark.checks import check_common, check_read
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.cluster.topics import NameServers
from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import Options, Table
from cometmq.spark.options.offsets_json import EARLIEST, LATEST, Queue, from_text, to_text

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
