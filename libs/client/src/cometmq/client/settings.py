# SPDX-License-Identifier: Apache-2.0
"""Options of clients, with the defaults of the Java client 4.9.4; durations in milliseconds."""

from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.message.flags import CompressionType
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.types import Serialization

DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose route serves topics that do not exist yet (AUTO_CREATE_TOPIC_KEY)."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024

_Positive = Annotated[int, Meta(ge=1)]
_NotNegative = Annotated[int, Meta(ge=0)]


class MessageModel(StrEnum):
    """Who gets a message of a subscribed topic."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""


class ConsumeFrom(StrEnum):
    """Where a group begins in a queue for which it has no offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common to producers, consumers and admin clients."""

    namesrv: str = ""
    """`host:port`, several separated by `;`; empty: the environment's NAMESRV_ADDR."""
    client_ip: str = ""
    """Part of the client id; empty: the first address of this machine that is not loopback."""
    instance_name: str = "DEFAULT"
    """Part of the client id; DEFAULT: a name that no other client on this machine has."""
    unit_name: str | None = None
    """Suffix of the client id."""
    poll_namesrv_interval_ms: _Positive = 30_000
    heartbeat_interval_ms: _Positive = 30_000
    persist_offset_interval_ms: _Positive = 5_000
    api_timeout_ms: _Positive = 3_000
    """Bound of calls that are neither sends nor pulls."""
    vip_channel: bool = False
    """Send to the broker's port minus 2."""
    serialization: Serialization = Serialization.JSON
    tls: TlsSettings = TlsSettings()


class ProducerOptions(ClientOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a producer."""

    default_topic: str = DEFAULT_TOPIC
    default_topic_queue_nums: _Positive = 4
    send_timeout_ms: _Positive = 3_000
    """Over all attempts of one send."""
    retry_times: _NotNegative = 2
    """Attempts after the first."""
    retry_another_broker_when_not_stored: bool = False
    """Try again when a broker stored the message less safely than its settings ask."""
    compress_over_bytes: _NotNegative = 4096
    compress_type: CompressionType = CompressionType.ZLIB
    compress_level: Annotated[int, Meta(ge=0, le=9)] = 5
    body_bytes_max: _Positive = BODY_BYTES_MAX
    avoid_slow_brokers: bool = False
    """Leave brokers that were slow or failed out for a while (sendLatencyFaultEnable)."""
    pending_sends_max: _Positive = 10_000
    """Sends at once; further ones wait for their turn."""


class ConsumerOptions(ClientOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common to push and lite pull consumers."""

    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: _NotNegative = 0
    """For ConsumeFrom.TIMESTAMP; 0: half an hour before the start."""
    rebalance_interval_ms: _Positive = 20_000
    """How often queues are shared anew even if no broker asks for it."""
    pull_count_max: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Messages per pull."""
    queue_count_max: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Messages of one queue that are pulled and not yet consumed."""
    queue_bytes_max: _Positive = 100 * 1024 * 1024
    """Their bodies together."""
    queue_span_max: Annotated[int, Meta(ge=1, le=65_535)] = 2_000
    """From the first of them to the last, in queue offsets."""
    suspend_ms: _Positive = 15_000
    """How long a broker holds a pull that finds nothing."""
    pull_timeout_ms: _Positive = 30_000
    """How long to wait for the answer; longer than `suspend_ms`."""

    def __post_init__(self) -> None:
        """Refuse bounds that contradict each other."""
        if self.pull_timeout_ms <= self.suspend_ms:
            raise ValueError("pull_timeout_ms must be longer than suspend_ms")


class PushOptions(ConsumerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a push consumer."""

    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Calls of the listener at the same time (consumeThreadMax)."""
    batch_count_max: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Messages per call of the listener (consumeMessageBatchMaxSize)."""
    pull_interval_ms: Annotated[int, Meta(ge=0, le=65_535)] = 0
    topic_count_max: _NotNegative = 0
    """Like `queue_count_max`, for all own queues of a topic together; 0: no bound."""
    topic_bytes_max: _NotNegative = 0
    max_reconsume_times: Annotated[int, Meta(ge=-1)] = -1
    """Deliveries again before a message is dead; -1: 16."""
    consume_timeout_ms: _Positive = 15 * 60_000
    """A message that the listener keeps for longer is given back to the broker."""
    post_subscription_when_pull: bool = False
    drain_ms: _NotNegative = 10_000
    """How long `close` waits for calls of the listener."""


class LitePullOptions(ConsumerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a lite pull consumer."""

    pull_count_max: Annotated[int, Meta(ge=1, le=1024)] = 10
    suspend_ms: _Positive = 20_000
    auto_commit: bool = True
    auto_commit_interval_ms: Annotated[int, Meta(ge=1_000)] = 5_000
    poll_timeout_ms: _NotNegative = 5_000
    total_count_max: _Positive = 10_000
    """Messages of all queues that are pulled and not yet polled."""


OptionsT = TypeVar("OptionsT", bound=ClientOptions)


def checked(options: OptionsT, namesrv: str = "") -> OptionsT:
    """Return the options with the name servers given beside them; InvalidArgument if one is wrong.

    Structs check bounds only when they are converted, so this does.
    """
    values = msgspec.structs.asdict(options)
    if namesrv:
        values["namesrv"] = namesrv
    try:
        return msgspec.convert(values, type(options))
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"an option is wrong: {error}") from error
