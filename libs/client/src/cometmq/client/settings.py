# SPDX-License-Identifier: Apache-2.0
"""Client options, with the defaults of the Java client 4.9.4; durations are in milliseconds."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.message.flags import CompressionType
from cometmq.remoting.names import AUTO_CREATE_TOPIC, TRACE_TOPIC
from cometmq.remoting.setting_facts import Natural, Positive
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.spelling import nearest
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.types import Serialization


class OptionsMeta(msgspec.StructMeta):
    """Checks the names of options; msgspec's own error names neither class nor options."""

    if not TYPE_CHECKING:  # type checkers would take this signature, which accepts any option

        def __call__(cls, *args: object, **options: object) -> object:  # noqa: N805
            """Return the options; raise InvalidArgument for a name that is not an option of this
            class."""
            if args:
                raise InvalidArgument(f"options are given by name, as {cls.__name__}(**options)")
            for name in options:
                if name not in cls.__struct_fields__:
                    raise InvalidArgument(f"{cls.__name__} has no option {name}{_meant(cls, name)}")
            return super().__call__(**options)


def _meant(kind: OptionsMeta, name: str) -> str:
    """Return a hint: our name for a Java option, or similar names."""
    for own, hint in get_type_hints(kind, include_extras=True).items():
        if any(f"({name})" in str(fact) for fact in get_args(hint)[1:]):
            return f": RocketMQ's {name} is {own} here"
    return nearest(name, kind.__struct_fields__) or f": help({kind.__name__}) lists its options"


NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
"""Environment variable with the name server addresses, as in the Java client."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
CONCURRENCY_MAX: Final = 1000

DELAY_LEVEL_MAX: Final = 18
"""Levels in the default messageDelayLevel of a broker."""

RETRY_CODES: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Refusals after which a different broker may accept a message; SYSTEM_BUSY is not included."""


class MessageModel(StrEnum):
    """Which members of a group receive a message."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Every member; offsets are kept in local files, and failed messages are not redelivered."""


class ConsumeFrom(StrEnum):
    """Where a group starts in a queue without a committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class AccessChannel(StrEnum):
    """The kind of service that runs the brokers."""

    LOCAL = "LOCAL"
    """A self-managed cluster."""
    CLOUD = "CLOUD"
    """A hosted service, with one trace topic per region."""


class ClientOptions(
    msgspec.Struct,
    metaclass=OptionsMeta,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """Common options of producers, consumers and admin clients."""

    namesrv: Annotated[
        str,
        "`host:port;host:port` (default port 9876); if empty, the variable NAMESRV_ADDR is used.",
    ] = ""
    namesrv_url: Annotated[str, "HTTP URL of a name server list, used if no address is given."] = ""
    client_ip: Annotated[
        str, "Part of the client id; if empty, this machine's outgoing address is used."
    ] = ""
    instance_name: Annotated[
        str,
        "Part of the client id; DEFAULT is replaced by a unique name, except for consumers with "
        "BROADCASTING. Processes on one host that consume in one group need different names.",
    ] = "DEFAULT"
    unit_name: Annotated[str | None, "Suffix of the client id."] = None
    unit_mode: Annotated[bool, "Mark created topics and groups with the unit flag."] = False
    namespace: Annotated[
        str,
        "Namespace of topics and groups; if empty, it is taken from a name server address such as "
        "`MQ_INST_x_y.host:port`.",
    ] = ""
    access_channel: Annotated[AccessChannel, "CLOUD uses one trace topic per region."] = (
        AccessChannel.LOCAL
    )
    trace_context: Annotated[
        bool,
        "Continue W3C traces: sent messages carry `traceparent`, and listeners run in the trace "
        "of their message. OpenTelemetry is used if it is installed.",
    ] = False
    poll_namesrv_interval_ms: Annotated[Positive, "Interval between route refreshes."] = 30_000
    heartbeat_interval_ms: Annotated[Positive, "Interval between heartbeats to brokers."] = 30_000
    persist_offset_interval_ms: Annotated[Positive, "Interval between offset commits."] = 5_000
    api_timeout_ms: Annotated[Positive, "Timeout of calls other than sends and pulls."] = 3_000
    vip_channel: Annotated[bool, "Send to the broker's port minus 2."] = False
    serialization: Annotated[
        Serialization, "Encoding of headers; brokers answer in the same encoding."
    ] = Serialization.JSON
    credentials: Annotated[
        SessionCredentials | None,
        "Keys for signing every request, for brokers with access control.",
    ] = None
    tls: Annotated[TlsSettings, "TLS settings for all connections; `enable` turns TLS on."] = (
        TlsSettings()
    )


class ProducerOptions(ClientOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for a producer."""

    default_topic: Annotated[str, "Template of topics created by a send (createTopicKey)."] = (
        AUTO_CREATE_TOPIC
    )
    default_topic_queue_nums: Annotated[
        Positive, "Maximum queue count of a topic created by a send."
    ] = 4
    send_timeout_ms: Annotated[Positive, "Timeout of one send, over all attempts."] = 3_000
    retry_times: Annotated[
        Natural,
        "Attempts after the first one. Attempts that reach no broker do not count: they are "
        "repeated, with growing pauses, until `send_timeout_ms`. 0: a single attempt.",
    ] = 2
    delay_level_max: Annotated[
        Positive, "Highest `delay_level`, as in the brokers' messageDelayLevel."
    ] = DELAY_LEVEL_MAX
    retry_another_broker_when_not_stored: Annotated[
        bool, "Retry when a message was not flushed or replicated as configured."
    ] = False
    retry_when_busy: Annotated[
        bool, "Retry, after a pause, when a broker is overloaded (SYSTEM_BUSY)."
    ] = False
    retry_codes: Annotated[
        frozenset[int], "Response codes that are retried (retryResponseCodes)."
    ] = RETRY_CODES
    short_headers: Annotated[
        bool, "Use one-letter header names (sendSmartMsg); all brokers accept them."
    ] = True
    trace: Annotated[bool, "Send a trace of each sent message (enableMsgTrace)."] = False
    trace_topic: Annotated[str, "Topic of the traces (customizedTraceTopic)."] = TRACE_TOPIC
    pending_requests_max: Annotated[
        Positive, "Maximum number of pending requests; any more are refused."
    ] = 10_000
    compress_over_bytes: Annotated[Natural, "Size in bytes from which bodies are compressed."] = (
        4096
    )
    compress_type: Annotated[
        CompressionType, "Compression algorithm; consumers before 4.9.4 can read only ZLIB."
    ] = CompressionType.ZLIB
    compress_level: Annotated[int, Meta(ge=0, le=9), "Compression level."] = 5
    body_bytes_max: Annotated[Positive, "Maximum size of a body or batch (maxMessageSize)."] = (
        BODY_BYTES_MAX
    )
    avoid_slow_brokers: Annotated[
        bool, "Avoid slow and failing brokers for a while (sendLatencyFaultEnable)."
    ] = False
    pending_sends_max: Annotated[Positive, "Maximum number of concurrent sends; any more wait."] = (
        10_000
    )


class TransactionOptions(ProducerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for a transactional producer."""

    execute_concurrency: Annotated[
        int,
        Meta(ge=1, le=1000),
        "Maximum number of concurrent local transactions that are plain functions, which run on "
        "threads.",
    ] = 20
    rollback_on_error: Annotated[
        bool,
        "Whether a local transaction that raises an exception is rolled back. If false, it stays "
        "open as in RocketMQ, and the broker asks about it.",
    ] = True
    check_concurrency: Annotated[
        int, Meta(ge=1, le=1000), "Maximum number of concurrent checks (checkThreadPoolMaxSize)."
    ] = 1
    pending_checks_max: Annotated[
        Positive,
        "Maximum number of pending checks; any more are dropped, and the broker repeats them "
        "(checkRequestHoldMax).",
    ] = 2_000


class ConsumerOptions(ClientOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common options of all consumers."""

    message_model: Annotated[
        MessageModel, "Deliver each message to one member of the group, or to all."
    ] = MessageModel.CLUSTERING
    offsets_dir: Annotated[
        str,
        "Folder of `CLIENT_ID/GROUP/offsets.json` for BROADCASTING; if empty, `.rocketmq_offsets` "
        "in the home folder. A `~` at the start is the home folder.",
    ] = ""
    consume_from: Annotated[
        ConsumeFrom,
        "Where a group without an offset starts in a queue. Brokers override it for young queues, "
        "which are read from 0 (youngQueueStartsAtZero).",
    ] = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: Annotated[
        Natural, "Time for ConsumeFrom.TIMESTAMP; 0 means 30 min before the start."
    ] = 0
    trace: Annotated[bool, "Send a trace of each consumed message (enableMsgTrace)."] = False
    trace_topic: Annotated[str, "Topic of the traces (customizedTraceTopic)."] = TRACE_TOPIC
    rebalance_interval_ms: Annotated[
        Positive, "Interval between rebalances that no broker has requested."
    ] = 20_000
    pull_count_max: Annotated[int, Meta(ge=1, le=1024), "Messages per pull."] = 32
    queue_count_max: Annotated[
        int,
        Meta(ge=1, le=65_535),
        "Maximum number of messages per queue that are pulled but not consumed.",
    ] = 1_000
    queue_bytes_max: Annotated[Positive, "Maximum total body size of those messages, in bytes."] = (
        100 * 1024 * 1024
    )
    queue_span_max: Annotated[
        int,
        Meta(ge=1, le=65_535),
        "Maximum distance between the first and the last offset of those messages.",
    ] = 2_000
    suspend_ms: Annotated[Positive, "How long a broker holds a pull without messages."] = 15_000
    pull_timeout_ms: Annotated[Positive, "Timeout of a pull; must be longer than `suspend_ms`."] = (
        30_000
    )

    def __post_init__(self) -> None:
        """Raise if bounds contradict each other."""
        times: tuple[Any, Any] = (self.pull_timeout_ms, self.suspend_ms)
        if not all(type(time) is int for time in times):
            return  # `checked` names the option
        if self.pull_timeout_ms <= self.suspend_ms:
            raise InvalidArgument(
                f"pull_timeout_ms ({self.pull_timeout_ms}) must be longer than suspend_ms "
                f"({self.suspend_ms}), for which a broker holds a pull"
            )


class PushOptions(ConsumerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for a push consumer."""

    concurrency: Annotated[
        int,
        Meta(ge=1, le=CONCURRENCY_MAX),
        "Maximum number of concurrent listener calls (consumeThreadMax).",
    ] = 20
    batch_count_max: Annotated[
        int, Meta(ge=1, le=1024), "Maximum messages per listener call (consumeMessageBatchMaxSize)."
    ] = 1
    pull_interval_ms: Annotated[
        int, Meta(ge=0, le=65_535), "Pause between the pulls of a queue."
    ] = 0
    topic_count_max: Annotated[
        Natural, "Like `queue_count_max`, but for all owned queues of a topic; 0 means no limit."
    ] = 0
    topic_bytes_max: Annotated[
        Natural, "Like `queue_bytes_max`, but for all owned queues of a topic; 0 means no limit."
    ] = 0
    orderly: Annotated[
        bool,
        "Deliver the messages of a queue one list at a time, to one member of the group at a "
        "time; the listener returns OrderlyResult.",
    ] = False
    suspend_queue_ms: Annotated[
        int, Meta(ge=10, le=30_000), "With `orderly`, how long a queue pauses after a failure."
    ] = 1_000
    max_reconsume_times: Annotated[
        int,
        Meta(ge=-1),
        "Redeliveries before dead-lettering; -1 means 16, or with `orderly` no limit.",
    ] = -1
    delay_level_max: Annotated[
        Positive,
        "Highest `delay_level` of `send_message_back`, as in the brokers' messageDelayLevel.",
    ] = DELAY_LEVEL_MAX
    consume_timeout_ms: Annotated[
        Positive, "Time after which a message that the listener still holds is sent back."
    ] = 15 * 60_000
    stuck_listener_ms: Annotated[
        Positive,
        "Time after which a running listener call is reported as a warning (`listener.stuck`).",
    ] = 30_000
    post_subscription_when_pull: Annotated[
        bool, "Send the subscription with every pull, not only in heartbeats."
    ] = False
    drain_ms: Annotated[
        Natural,
        "How long `close` waits for running listener calls. A plain function runs on a thread "
        "that cannot be stopped, so a longer call delays process exit.",
    ] = 10_000


class LitePullOptions(ConsumerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for a lite pull consumer."""

    pull_count_max: Annotated[int, Meta(ge=1, le=1024), "Messages per pull."] = 10
    suspend_ms: Annotated[Positive, "How long a broker holds a pull without messages."] = 20_000
    auto_commit: Annotated[
        bool, "Commit at intervals, inside `poll`, and at `close`. If false, only `commit` commits."
    ] = True
    auto_commit_interval_ms: Annotated[int, Meta(ge=1_000), "Commit interval."] = 5_000
    poll_timeout_ms: Annotated[Natural, "Default timeout of `poll`."] = 5_000
    total_count_max: Annotated[
        Positive, "Maximum number of messages pulled but not polled, over all queues."
    ] = 10_000
    queue_check_interval_ms: Annotated[
        Positive, "Interval between checks for on_queues_changed."
    ] = 30_000


class PullOptions(ConsumerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for a pull consumer; prefetching options have no effect."""

    suspend_ms: Annotated[Positive, "How long brokers hold a blocking pull without messages."] = (
        20_000
    )
    plain_pull_timeout_ms: Annotated[Positive, "Timeout of a pull that does not block."] = 10_000
    max_reconsume_times: Annotated[
        int, Meta(ge=-1), "Redeliveries of a returned message; -1 means 16."
    ] = -1
    delay_level_max: Annotated[
        Positive,
        "Highest `delay_level` of `send_message_back`, as in the brokers' messageDelayLevel.",
    ] = DELAY_LEVEL_MAX


OptionsT = TypeVar("OptionsT", bound=ClientOptions)


def producer_options(options: ClientOptions) -> ProducerOptions:
    """Convert the options of another client; options that producers lack are dropped."""
    names = ClientOptions.__struct_fields__
    return ProducerOptions(**{name: getattr(options, name) for name in names})
