# SPDX-License-Identifier: Apache-2.0
"""Reads messages as a stream, whose offsets Spark stores in its checkpoint.

Invariants
    Offsets that `latestOffset` has returned always select the same messages again. A new queue
    therefore enters the checkpoint at its first offset, without messages, and is read from the next
    batch on. Its first offset may change between the two batches.

    A queue that has disappeared stays in the checkpoint.

A query ends with the first failure of its driver. So once a query has begun, its driver waits for
servers that are being restarted, as tasks do.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.spark.checks import check_stream
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.errors import BrokerUnreachable, DataLoss, NameServerUnreachable, Refused
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options.definitions import Options, duration_ms
from cometmq.spark.options.offsets_json import Queue, from_json, to_json
from cometmq.spark.read.batch import ranges_of
from cometmq.spark.read.fetching import data_loss
from cometmq.spark.read.planning import (
    Ends,
    Span,
    check_starts,
    limited,
    spans_between,
    starting_offsets,
    total_size,
)
from cometmq.spark.read.task import read_range
from cometmq.spark.schemas import check_schema

PATIENCE_MS: Final = 15_000
"""How long a running query waits for brokers or name servers that do not answer."""

_CHECKPOINT = "the checkpoint"
_PAUSE_S: Final = 0.5

_T = TypeVar("_T")


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of queues, batch by batch."""

    def __init__(
        self,
        options: Options,
        schema: StructType,
        *,
        metadata: Metadata | None = None,
        clock_ms: Callable[[], int] | None = None,
        pause: Callable[[float], None] = time.sleep,
        log: Log = WORKER_LOG,
    ) -> None:
        check_stream(options)
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._metadata = metadata or Metadata(options)
        self._clock_ms = clock_ms or _monotonic_ms
        self._pause = pause
        self._log = log
        self._batch_ms = self._clock_ms()
        self._frozen: dict[Queue, int] | None = None
        self._latest: dict[Queue, int] = {}
        self._committed: dict[Queue, int] | None = None
        self._registered: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the name is Spark's
        """Return the offsets at which a query without a checkpoint starts."""
        ends = self._ends(must_exist=True)
        start = starting_offsets(self._metadata, self._options, ends, default="latest")
        if self._options.fail_on_data_loss:
            check_starts(start, ends)  # else the first batch would fail as if messages were lost
        return to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the offsets at which this run ends; later messages are left for the next run."""
        ends = self._patiently(lambda: self._ends(must_exist=False))
        self._frozen = {queue: end for queue, (_, end) in ends.items()}

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next batch."""
        begun = from_json(start, source=_CHECKPOINT, lowest=0)
        ends = self._patiently(lambda: self._ends(must_exist=False))
        # Spark asks for the next batch when everything before `start` is done. This includes the
        # last batch of `availableNow`, for which Spark never calls `commit`.
        self._commit_offsets(begun)
        if self._frozen is not None:
            ends = {queue: both for queue, both in ends.items() if queue in self._frozen}
        self._latest = {queue: end for queue, (_, end) in ends.items()}
        following, spans = self._following(begun, ends)
        if self._must_wait(spans):
            return to_json(begun)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        following.update(limited(spans, rows))
        if following != begun:  # `maxTriggerDelay` counts from the last batch with new offsets
            self._batch_ms = self._clock_ms()
        return to_json(following)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known ends, which Spark shows as progress."""
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a batch into tasks, after checking that its messages still exist."""
        begun = from_json(start, source=_CHECKPOINT, lowest=0)
        ended = from_json(end, source=_CHECKPOINT, lowest=0)
        spans = [span for span in spans_between(begun, ended) if span.size > 0]
        if not spans:
            return []
        ends = self._patiently(lambda: self._ends_of(spans))
        spans = [part for span in spans if (part := self._remaining_part(span, ends)).size > 0]
        return ranges_of(spans, self._metadata, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of `commitGroup`; Spark does not depend on the result."""
        self._commit_offsets(from_json(end, source=_CHECKPOINT, lowest=0))

    def stop(self) -> None:
        self._metadata.close()

    def __reduce__(self) -> Any:
        """Pickle only the constructor's arguments, without connections."""
        return type(self), (self._options, self._schema)

    def _commit_offsets(self, offsets: dict[Queue, int]) -> None:
        """Register `commitGroup` and commit its offsets, unless they are committed already."""
        group = self._options.commit_group
        if not group or offsets == self._committed:
            return
        try:
            if not self._metadata.brokers:
                self._ends(must_exist=False)
            self._register(group)
            self._metadata.commit(group, offsets)
            self._committed = dict(offsets)
        except CometError as error:
            self._log.warning("offsets.refused", group=group, error=str(error))

    def _register(self, group: str) -> None:
        """Create the group at brokers that do not have it, so that tools list it."""
        names = set(self._metadata.brokers) - self._registered
        if not names:
            return
        try:
            self._metadata.register(group, names)
        except Refused as error:  # the account may not create groups: offsets may still be allowed
            self._log.warning("group.refused", group=group, error=str(error))
        self._registered |= names

    def _patiently(self, find: Callable[[], _T]) -> _T:
        """Call `find` again, for a while, if a broker or all name servers do not answer."""
        deadline_ms = self._clock_ms() + PATIENCE_MS
        while True:
            try:
                return find()
            except (BrokerUnreachable, NameServerUnreachable) as error:
                if self._clock_ms() >= deadline_ms:
                    raise
                self._log.warning("broker.lost", error=str(error))
            self._pause(_PAUSE_S)

    def _ends(self, *, must_exist: bool) -> Ends:
        return self._metadata.ends(self._metadata.queues(must_exist=must_exist))

    def _following(
        self, begun: Mapping[Queue, int], ends: Ends
    ) -> tuple[dict[Queue, int], list[Span]]:
        """Return the offsets from which the next batch starts, and the spans that it may read."""
        following = dict(begun)
        spans: list[Span] = []
        for queue, (first, end) in ends.items():
            if queue not in begun:
                self._log.info("queue.found", queue=str(queue), offset=first)
                following[queue] = first
            elif end < begun[queue]:
                following[queue] = self._restart_queue(queue, begun[queue], first, end)
            else:
                last = end if self._frozen is None else min(end, self._frozen[queue])
                spans.append(Span(queue, begun[queue], max(begun[queue], last)))
        return following, spans

    def _restart_queue(self, queue: Queue, offset: int, first: int, end: int) -> int:
        """Restart a queue that ends before our offset: it was deleted and recreated."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{queue} ends at {end}, before the last read offset {offset}: its topic was "
                "recreated; set the option `failOnDataLoss`=false to start at its first message"
            )
        self._log.warning("queue.recreated", queue=str(queue), offset=offset, first=first)
        return first

    def _must_wait(self, spans: Sequence[Span]) -> bool:
        """Return whether to wait for more messages before starting a batch."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._frozen is not None or total_size(spans) >= least:
            return False
        waited_ms = self._clock_ms() - self._batch_ms
        return waited_ms < duration_ms(self._options.max_trigger_delay)

    def _ends_of(self, spans: Sequence[Span]) -> Ends:
        """Return the ends of the queues of a planned batch.

        The brokers of queues without a route are asked: the topic may have been deleted, or
        the broker may only be down for a while, in which case nothing is lost.
        """
        ends = dict(self._ends(must_exist=False))
        missing = [span.queue for span in spans if span.queue not in ends]
        if missing:
            self._metadata.find_brokers({queue.broker_name for queue in missing})
            ends.update(self._metadata.ends(missing))
        return ends

    def _remaining_part(self, span: Span, ends: Ends) -> Span:
        """Return the part of a span that still exists; raise DataLoss if no loss is allowed."""
        first, end = ends[span.queue]
        is_deleted = end == 0
        first = span.end if is_deleted else min(first, span.end)
        if span.start >= first:
            return span
        lost = first - span.start
        if self._options.fail_on_data_loss:
            reason = "were deleted with their queue" if is_deleted else "no longer exist"
            raise data_loss(span.queue, span.start, lost, reason)
        self._log.warning("messages.lost", queue=str(span.queue), count=lost)
        return Span(span.queue, first, span.end)


def _monotonic_ms() -> int:
    return int(time.monotonic() * 1000)
