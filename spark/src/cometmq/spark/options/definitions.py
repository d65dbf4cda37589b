# SPDX-License-Identifier: Apache-2.0
"""The options of the data source in one table: names, defaults, bounds and meanings.

The documentation is generated from here. `parse` turns the options that Spark passes, whose names
may be in any case, into a struct that can be pickled; `option_values` converts the values.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field
from msgspec.structs import FieldInfo

from cometmq.remoting.names import ALL_TAGS, SYSTEM_GROUP_PREFIX
from cometmq.remoting.setting_facts import Natural, Positive
from cometmq.spark.errors import OptionError

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h)")


def find_option(name: str, known: Mapping[str, FieldInfo]) -> FieldInfo:
    """Look up an option; the error for an unknown option suggests the closest name."""
    info = known.get(name.lower())
    if info is not None:
        return info
    other = advice(name)
    if other is not None:
        raise OptionError(f"unknown option `{name}`: {other}")
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean `{known[near[0]].encode_name}`?" if near else "see the list of options"
    raise OptionError(f"unknown option `{name}`: {hint}")


def option_value(info: FieldInfo, text: str) -> Any:
    try:
        return msgspec.convert(text.strip(), info.type, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at")[0]
        raise OptionError(f"option `{info.encode_name}`={text!r}: {reason}") from None


def duration_ms(text: str) -> int:
    """Convert a duration whose format has been validated."""
    match = _DURATION.fullmatch(text)
    assert match is not None
    return int(match[1]) * _UNITS_MS[match[2]]


KAFKA_PREFIX: Final = "kafka."

_NAME_SERVER: Final = "set `nameServer` to `host:9876` of a name server"

FOREIGN: Final[dict[str, str]] = {
    "kafka.bootstrap.servers": f"it is an option of Kafka; {_NAME_SERVER}",
    "bootstrap.servers": f"it is an option of Kafka; {_NAME_SERVER}",
    "kafka.group.id": "it is an option of Kafka; use `group` for pulls, or `commitGroup` to let"
    " tools see the progress of a stream",
    "groupidprefix": "it is an option of Kafka; use `group`",
    "kafka.client.id": "it is an option of Kafka, and not needed here; remove it",
    "kafka.security.protocol": "it is an option of Kafka; use `useTLS`",
    "kafka.ssl.truststore.location": "it is an option of Kafka; use `tls.caFile`, a PEM file",
    "kafka.ssl.keystore.location": "it is an option of Kafka; use `tls.certFile` and"
    " `tls.keyFile`, PEM files",
    "kafka.sasl.jaas.config": "it is an option of Kafka; use `secretFile`, or `accessKey` and"
    " `secretKey`",
    "kafka.sasl.mechanism": "it is an option of Kafka; use `secretFile`, or `accessKey` and"
    " `secretKey`",
    "kafkaconsumer.polltimeoutms": "it is an option of Kafka; use `pullTimeoutMs`",
    "kafka.max.poll.records": "it is an option of Kafka; use `pullBatchSize`",
    "kafka.auto.offset.reset": "it is an option of Kafka; use `startingOffsets`",
    "auto.offset.reset": "it is an option of Kafka; use `startingOffsets`",
    "kafka.isolation.level": "it is an option of Kafka; messages of transactions are read once they"
    " are committed; remove it",
    "includeheaders": "it is an option of Kafka; the column `properties` has them, see"
    " `includeProperties`",
    "partition": "it is an option of Kafka; use `assign`, or the column `queue_id`",
    "path": "topics are named by the option `subscribe`, not by an argument of `load`",
    "topics": "use `subscribe`",
    "namesrvaddr": "use `nameServer`",
    "namesrv": "use `nameServer`",
    "nameserver.addr": "use `nameServer`",
    "consumer.group": "use `group`, or `commitGroup`",
    "consumergroup": "use `group`, or `commitGroup`",
    "consumer.offset": "use `startingOffsets`",
    "consumer.tag": "use `subExpression`",
    "tag": "use `subExpression`",
    "tags": "use `subExpression`, as in `TagA || TagB`",
    "pull.max.speed.per.partition": "use `maxOffsetsPerTrigger`",
}
"""By name in lower case: what to do instead."""


def advice(name: str) -> str | None:
    """Return what to use instead of another source's option; None if the name is not known."""
    key = name.lower()
    if key in FOREIGN:
        return FOREIGN[key]
    if key.startswith(KAFKA_PREFIX):
        return "options of Kafka's clients have no meaning here; remove it"
    return None


READER_GROUP: Final = SYSTEM_GROUP_PREFIX + "SPARK"
"""Default group of pulls; brokers create groups with this prefix on demand."""
IGNORED: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it also passes to sources and sinks."""


class Mode(StrEnum):
    """A use of the data source; the value is its name in errors."""

    BATCH = "batch reads"
    STREAM = "stream reads"
    TABLE = "reads of tables other than `messages`"
    WRITE = "writes"


def _used_in(text: str, *modes: Mode) -> Meta:
    """Return where an option has an effect; the documentation shows the text."""
    return Meta(extra={"applies": text, "modes": frozenset(modes)})


READ: Final = _used_in("read", Mode.BATCH, Mode.STREAM)
BATCH: Final = _used_in("batch read", Mode.BATCH)
STREAM: Final = _used_in("stream read", Mode.STREAM)
TABLES: Final = _used_in("read of tables other than messages", Mode.TABLE)
ANY_READ: Final = _used_in("read of any table", Mode.BATCH, Mode.STREAM, Mode.TABLE)
WRITE: Final = _used_in("write", Mode.WRITE)
TOPIC: Final = _used_in("read, write", Mode.BATCH, Mode.STREAM, Mode.WRITE)
ALL: Final = _used_in("all", *Mode)


Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Milliseconds since 1970, a long of the protocol."""


class Table(StrEnum):
    MESSAGES = "messages"
    OFFSETS = "offsets"
    PROGRESS = "progress"
    GROUPS = "groups"
    BROKERS = "brokers"


class Properties(StrEnum):
    """Forms of the column `properties`."""

    MAP = "map"
    RAW = "raw"
    NONE = "none"


class ReadFrom(StrEnum):
    """The brokers of a broker group to read from."""

    MASTER = "master"
    SLAVE = "slave"
    AUTO = "auto"


class ExpressionType(StrEnum):
    """The language of a filter that brokers evaluate."""

    TAG = "TAG"
    SQL92 = "SQL92"


class NothingNewer(StrEnum):
    """What to do if every message is older than a given time."""

    ERROR = "error"
    LATEST = "latest"


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All options with their defaults."""

    name_server: Annotated[
        str,
        ALL,
        "Name servers as `host:port;host:port`, or an HTTP URL that returns such a list. Required.",
    ] = ""
    table: Annotated[
        Table, ALL, "Table to read; `messages` and `progress` can also be streams."
    ] = Table.MESSAGES
    subscribe: Annotated[str, READ, "Topics, separated by commas; `topic` is an alias."] = ""
    subscribe_pattern: Annotated[
        str,
        READ,
        "Regular expression that must match the whole topic name; a stream looks for new topics "
        "at every trigger.",
    ] = ""
    assign: Annotated[str, READ, 'Queues: `{"T":{"broker-a":[0,1]}}`.'] = ""
    include_system: Annotated[
        bool, READ, "Let `subscribePattern` match retry, dead-letter and system topics."
    ] = False
    starting_offsets: Annotated[
        str,
        READ,
        "`earliest`, `latest` (streams) or offsets as "
        '`{"T":{"broker-a":{"0":23,"1":-1}}}`, where -2 is earliest and -1 latest; every '
        "queue that is read must be named. Default: earliest for a batch, latest for a stream.",
    ] = ""
    ending_offsets: Annotated[
        str, BATCH, "`latest` or offsets of all queues as JSON, where -1 is latest."
    ] = "latest"
    starting_timestamp: Annotated[
        Time | None, READ, "Start with messages stored at this time (ms since 1970)."
    ] = None
    ending_timestamp: Annotated[
        Time | None, BATCH, "Stop before messages stored at this time (ms since 1970)."
    ] = None
    starting_offsets_by_timestamp: Annotated[
        str, READ, "Start times (ms) per queue, in the form of `startingOffsets`."
    ] = ""
    ending_offsets_by_timestamp: Annotated[
        str, BATCH, "End times (ms) per queue, in the form of `endingOffsets`."
    ] = ""
    starting_offsets_by_timestamp_strategy: Annotated[
        NothingNewer,
        READ,
        "What to do if no message is that recent: fail (`error`) or start at the end (`latest`).",
    ] = NothingNewer.ERROR
    starting_offsets_from_group: Annotated[
        str,
        READ,
        "Start at the committed offsets of this consumer group; queues without one start at the "
        "earliest message.",
    ] = ""
    fail_on_data_loss: Annotated[
        bool,
        STREAM,
        "Fail if messages to read no longer exist, as a batch always does. If false, continue with "
        "the oldest message and log the number of lost messages.",
    ] = True
    min_partitions: Annotated[
        Positive | None, READ, "Split queues into at least about this many ranges in total."
    ] = None
    max_records_per_partition: Annotated[
        Positive | None, READ, "Split queues into ranges of at most this many messages."
    ] = None
    max_offsets_per_trigger: Annotated[
        Positive | None, STREAM, "Maximum number of messages in one micro-batch."
    ] = None
    min_offsets_per_trigger: Annotated[
        Positive | None,
        STREAM,
        "Number of messages to wait for before a micro-batch, for at most `maxTriggerDelay`.",
    ] = None
    max_trigger_delay: Annotated[
        str,
        Meta(pattern=r"^\d+(ms|s|m|h)$"),
        STREAM,
        "How long to wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `1h`.",
    ] = "15m"
    sub_expression: Annotated[
        str,
        READ,
        "Filter evaluated by brokers: `*`, `TagA || TagB`, or SQL with `expressionType=SQL92`. "
        "Offsets advance past all messages, matching or not.",
    ] = ALL_TAGS
    expression_type: Annotated[ExpressionType, READ, "Language of `subExpression`."] = (
        ExpressionType.TAG
    )
    where: Annotated[
        str,
        READ,
        "Condition that the source applies, so that fewer messages are pulled and decoded: "
        "comparisons of `tags`, `keys`, `queue_id` and, in a batch, `store_ts` (UTC), joined by "
        "AND, as in `tags IN ('a', 'b') AND store_ts >= '2026-01-31'`. The rows are those of "
        "`DataFrame.where`.",
    ] = ""
    columns: Annotated[
        str,
        ANY_READ,
        "Columns to read, separated by commas; by default all. Columns that are not read are not "
        "decoded.",
    ] = ""
    group: Annotated[
        str,
        Meta(min_length=1),
        READ,
        "Consumer group named in pulls; brokers create a group on demand if its name has the "
        "prefix of the default.",
    ] = READER_GROUP
    commit_group: Annotated[
        str,
        STREAM,
        "Consumer group whose offsets are committed after each batch, so that tools can monitor "
        "the query: `cometmq lag GROUP`. It is created if it does not exist. The query itself "
        "never reads these offsets.",
    ] = ""
    pull_batch_size: Annotated[
        int, Meta(ge=1, le=4096), READ, "Maximum number of messages per pull."
    ] = 32
    pull_pipeline_depth: Annotated[
        int, Meta(ge=1, le=256), READ, "Number of concurrent pulls per task."
    ] = 8
    pull_timeout_ms: Annotated[Positive, READ, "Timeout of a pull."] = 3000
    fetch_num_retries: Annotated[Natural, ALL, "Number of retries of a metadata query."] = field(
        name="fetchOffset.numRetries", default=3
    )
    fetch_retry_interval_ms: Annotated[Natural, ALL, "Pause before each retry."] = field(
        name="fetchOffset.retryIntervalMs", default=10
    )
    read_from: Annotated[
        ReadFrom, READ, "`master`, `slave`, or `auto`, which uses a slave if the master fails."
    ] = ReadFrom.AUTO
    include_body: Annotated[bool, READ, "If false, bodies are not returned: `body` is null."] = True
    include_properties: Annotated[
        Properties, READ, "`map`, `raw` (their encoded text, much faster) or `none` (null)."
    ] = Properties.MAP
    inflate: Annotated[bool, READ, "Decompress the bodies of compressed messages."] = True
    arrow_batch_rows: Annotated[
        int, Meta(ge=1, le=1 << 20), READ, "Approximate number of rows per Arrow batch."
    ] = 8192
    timestamp_budget: Annotated[
        Natural,
        TABLES,
        "Maximum number of lagging (group, topic) pairs per broker whose message age is queried.",
    ] = 2000
    access_key: Annotated[str, ALL, "Access key, for brokers with access control."] = ""
    secret_key: Annotated[str, ALL, "Secret key; prefer `secretFile`."] = ""
    security_token: Annotated[str, ALL, "Security token, if required."] = ""
    secret_file: Annotated[
        str,
        ALL,
        "Path of a YAML file with `accessKey` and `secretKey`, on the driver and on every "
        "executor; it is read for each connection.",
    ] = ""
    use_tls: Annotated[bool, ALL, "Connect over TLS."] = field(name="useTLS", default=False)
    tls_ca_file: Annotated[str, ALL, "CA certificates for verifying the servers."] = field(
        name="tls.caFile", default=""
    )
    tls_cert_file: Annotated[str, ALL, "Client certificate."] = field(
        name="tls.certFile", default=""
    )
    tls_key_file: Annotated[str, ALL, "Private key of the client certificate."] = field(
        name="tls.keyFile", default=""
    )
    tls_verify: Annotated[bool, ALL, "Verify the servers' certificates."] = field(
        name="tls.verify", default=True
    )
    topic: Annotated[
        str, TOPIC, "Topic of all rows; if unset, each row needs the column `topic`."
    ] = ""
    producer_group: Annotated[str, Meta(min_length=1), WRITE, "Producer group named in sends."] = (
        "PID_SPARK"
    )
    max_in_flight: Annotated[
        int, Meta(ge=1, le=4096), WRITE, "Maximum number of pending sends per task."
    ] = 64
    batch_bytes: Annotated[
        int,
        Meta(ge=0, le=4 << 20),
        WRITE,
        "Maximum size of a batch of messages for one queue; 0 disables batching.",
    ] = 1 << 20
    send_timeout_ms: Annotated[Positive, WRITE, "Timeout of a send."] = 3000
    dedup_id: Annotated[
        bool,
        WRITE,
        "Derive message ids from the query, batch, task and row, so that a repeated batch has the "
        "same ids.",
    ] = True

    def __repr__(self) -> str:
        # Spark prints options in plans and tracebacks, so secrets must not appear.
        shown = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"Options({shown})"

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, with secrets masked."""
        return {
            info.encode_name: "***" if info.name in SECRETS else value
            for info in FIELDS
            if (value := getattr(self, info.name)) != info.default
        }


SECRETS: Final = frozenset({"secret_key", "security_token"})
FIELDS: Final = msgspec.structs.fields(Options)
MODES: Final[Mapping[str, frozenset[Mode]]] = {
    info.encode_name: next(it.extra["modes"] for it in info.type.__metadata__ if it.extra)
    for info in FIELDS
}
"""Where each option has an effect."""
_BY_NAME: Final = {info.encode_name.lower(): info for info in FIELDS}


_FIXES: Final = {
    ("subscribe", Mode.WRITE): "name the topic with `topic`",
    ("topic", Mode.TABLE): "select rows with `DataFrame.where`",
    ("subscribe", Mode.TABLE): "select rows with `DataFrame.where`",
    ("where", Mode.TABLE): "select rows with `DataFrame.where`",
}
"""What to do, where more than removing an option helps."""


def check_modes(given: Iterable[str], *modes: Mode) -> None:
    """Raise OptionError for an option, among these names, that has no effect in any of the modes.

    Spark does not say at `load()` whether a batch or a stream is read, so then both are given.
    """
    for name in given:
        if name.lower() in IGNORED:
            continue
        own = find_option(name, _BY_NAME).encode_name
        if MODES[own].isdisjoint(modes):
            meant = " and ".join(sorted(MODES[own]))
            fix = _FIXES.get((own, modes[0]), "remove it")
            raise OptionError(f"option `{own}` is for {meant}, not for {' or '.join(modes)}: {fix}")


def parse(given: Mapping[str, str]) -> Options:
    """Parse the options that Spark passes; OptionError names the invalid one."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in IGNORED:
            continue
        info = find_option(name, _BY_NAME)
        values[info.name] = option_value(info, text)
    return Options(**values)
