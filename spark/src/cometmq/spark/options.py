# SPDX-License-Identifier: Apache-2.0
"""The options of the data source: names, defaults, bounds and meanings, in one table.

The documentation is generated from here. `parse` turns what Spark hands over, in which case of
letters ever, into a struct that can be pickled; `option_values` reads the values.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from cometmq.spark.option_values import find_option, option_value

IGNORED: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark passes on to a source or sink although it is an option of its own."""

READ: Final = {"applies": "read"}
BATCH: Final = {"applies": "batch read"}
STREAM: Final = {"applies": "stream read"}
WRITE: Final = {"applies": "write"}
ALL: Final = {"applies": "all"}
TABLES: Final = {"applies": "read of tables other than messages"}


class Table(StrEnum):
    """What is read."""

    MESSAGES = "messages"
    OFFSETS = "offsets"
    PROGRESS = "progress"
    GROUPS = "groups"
    BROKERS = "brokers"


class Properties(StrEnum):
    """How the properties of messages are given."""

    MAP = "map"
    RAW = "raw"
    NONE = "none"


class ReadFrom(StrEnum):
    """Which brokers of a broker group are read."""

    MASTER = "master"
    SLAVE = "slave"
    AUTO = "auto"


class ExpressionType(StrEnum):
    """Language of a filter that brokers evaluate."""

    TAG = "TAG"
    SQL92 = "SQL92"


class NothingNewer(StrEnum):
    """What to do where no message is as new as a moment."""

    ERROR = "error"
    LATEST = "latest"


Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every option with its default."""

    name_server: Annotated[
        str,
        Meta(
            extra=ALL,
            description="`host:port;host:port`, or the HTTP address of such a list. Required.",
        ),
    ] = ""
    table: Annotated[
        Table,
        Meta(extra=READ, description="What to read; `messages` and `progress` also as streams."),
    ] = Table.MESSAGES
    subscribe: Annotated[
        str,
        Meta(extra=READ, description="Topics, separated by commas; `topic` is another name."),
    ] = ""
    subscribe_pattern: Annotated[
        str,
        Meta(
            extra=READ,
            description="Regular expression that whole topic names match; a stream looks for new "
            "topics at every trigger.",
        ),
    ] = ""
    assign: Annotated[str, Meta(extra=READ, description='Queues: `{"T":{"broker-a":[0,1]}}`.')] = ""
    include_system: Annotated[
        bool,
        Meta(
            extra=READ,
            description="`subscribePattern` finds retry, dead-letter and system topics too.",
        ),
    ] = False
    starting_offsets: Annotated[
        str,
        Meta(
            extra=READ,
            description="`earliest`, `latest` (streams) or offsets as "
            '`{"T":{"broker-a":{"0":23,"1":-1}}}`, where -2 is earliest and -1 latest. '
            "Default: earliest of a batch, latest of a stream.",
        ),
    ] = ""
    ending_offsets: Annotated[
        str,
        Meta(extra=BATCH, description="`latest` or offsets; -1 is latest."),
    ] = "latest"
    starting_timestamp: Annotated[
        Natural | None,
        Meta(extra=READ, description="Begin at messages stored at this moment (ms)."),
    ] = None
    ending_timestamp: Annotated[
        Natural | None,
        Meta(extra=BATCH, description="End before messages stored at this moment (ms)."),
    ] = None
    starting_offsets_by_timestamp: Annotated[
        str, Meta(extra=READ, description="Moments (ms) in the form of `startingOffsets`.")
    ] = ""
    ending_offsets_by_timestamp: Annotated[
        str, Meta(extra=BATCH, description="Moments (ms) in the form of `endingOffsets`.")
    ] = ""
    starting_offsets_by_timestamp_strategy: Annotated[
        NothingNewer,
        Meta(extra=READ, description="Where nothing is as new as the moment: fail, or latest."),
    ] = NothingNewer.ERROR
    starting_offsets_from_group: Annotated[
        str,
        Meta(
            extra=READ,
            description="Begin where this consumer group has committed; earliest where it has not.",
        ),
    ] = ""
    fail_on_data_loss: Annotated[
        bool,
        Meta(
            extra=READ,
            description="Fail when messages to read are gone. If false, a stream goes on with the "
            "oldest there is and logs how many are lost; a batch fails in any case.",
        ),
    ] = True
    min_partitions: Annotated[
        Positive | None,
        Meta(extra=READ, description="Split queues until there are about so many ranges."),
    ] = None
    max_records_per_partition: Annotated[
        Positive | None,
        Meta(extra=READ, description="Split queues into ranges of so many messages."),
    ] = None
    max_offsets_per_trigger: Annotated[
        Positive | None, Meta(extra=STREAM, description="Read at most so many in one batch.")
    ] = None
    min_offsets_per_trigger: Annotated[
        Positive | None,
        Meta(extra=STREAM, description="Wait for so many, for a time."),
    ] = None
    max_trigger_delay: Annotated[
        str,
        Meta(
            pattern=r"^\d+(ms|s|m|h)$",
            extra=STREAM,
            description="How long to wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `1h`.",
        ),
    ] = "15m"
    sub_expression: Annotated[
        str,
        Meta(
            extra=READ,
            description="Filter that brokers evaluate: `*`, `TagA || TagB`, or SQL with "
            "`expressionType=SQL92`. Offsets advance over all messages.",
        ),
    ] = "*"
    expression_type: Annotated[
        ExpressionType, Meta(extra=READ, description="Language of `subExpression`.")
    ] = ExpressionType.TAG
    group: Annotated[
        str,
        Meta(
            min_length=1,
            extra=READ,
            description="Group named in pulls; brokers create groups with the prefix of the "
            "default on demand.",
        ),
    ] = "CID_RMQ_SYS_SPARK"
    commit_group: Annotated[
        str,
        Meta(
            extra=STREAM,
            description="Commit offsets of this group after each batch, one batch late, so that "
            "tools see the query. They are never read back.",
        ),
    ] = ""
    pull_batch_size: Annotated[
        int,
        Meta(ge=1, le=4096, extra=READ, description="Messages to ask for in one pull."),
    ] = 32
    pull_pipeline_depth: Annotated[
        int, Meta(ge=1, le=256, extra=READ, description="Pulls of a task that wait for an answer.")
    ] = 8
    pull_timeout_ms: Annotated[
        int, Meta(ge=1, extra=READ, description="How long a pull waits for its answer.")
    ] = 3000
    fetch_num_retries: Annotated[
        int, Meta(ge=0, extra=ALL, description="How often questions about metadata are repeated.")
    ] = field(name="fetchOffset.numRetries", default=3)
    fetch_retry_interval_ms: Annotated[
        int, Meta(ge=0, extra=ALL, description="Pause before a question is repeated.")
    ] = field(name="fetchOffset.retryIntervalMs", default=10)
    read_from: Annotated[
        ReadFrom,
        Meta(extra=READ, description="`master`, `slave`, or `auto`: a slave if the master fails."),
    ] = ReadFrom.AUTO
    include_body: Annotated[
        bool, Meta(extra=READ, description="If false, `body` is null and costs nothing.")
    ] = True
    include_properties: Annotated[
        Properties,
        Meta(extra=READ, description="`map`, `raw` (their text, much faster) or `none` (null)."),
    ] = Properties.MAP
    inflate: Annotated[
        bool, Meta(extra=READ, description="Decompress the bodies of compressed messages.")
    ] = True
    arrow_batch_rows: Annotated[
        int, Meta(ge=1, le=1 << 20, extra=READ, description="Rows of one Arrow batch, about.")
    ] = 8192
    timestamp_budget: Annotated[
        int,
        Meta(ge=0, extra=TABLES, description="Lagging (group, topic) pairs timed in one round."),
    ] = 2000
    access_key: Annotated[
        str, Meta(extra=ALL, description="Account, for brokers with access control.")
    ] = ""
    secret_key: Annotated[str, Meta(extra=ALL, description="Its secret; prefer `secretFile`.")] = ""
    security_token: Annotated[str, Meta(extra=ALL, description="Its token, if it has one.")] = ""
    secret_file: Annotated[
        str,
        Meta(
            extra=ALL,
            description="YAML file with `accessKey` and `secretKey` at this path on the driver and "
            "on every executor, read at each connect.",
        ),
    ] = ""
    use_tls: Annotated[bool, Meta(extra=ALL, description="Connect with TLS.")] = field(
        name="useTLS", default=False
    )
    tls_ca_file: Annotated[
        str, Meta(extra=ALL, description="Certificates that servers' must descend from.")
    ] = field(name="tls.caFile", default="")
    tls_cert_file: Annotated[str, Meta(extra=ALL, description="Our own certificate.")] = field(
        name="tls.certFile", default=""
    )
    tls_key_file: Annotated[str, Meta(extra=ALL, description="Its key.")] = field(
        name="tls.keyFile", default=""
    )
    tls_verify: Annotated[bool, Meta(extra=ALL, description="Verify servers' certificates.")] = (
        field(name="tls.verify", default=True)
    )
    topic: Annotated[
        str,
        Meta(extra=WRITE, description="Topic of all rows; else each row needs the column `topic`."),
    ] = ""
    producer_group: Annotated[
        str, Meta(min_length=1, extra=WRITE, description="Producer group named in sends.")
    ] = "PID_SPARK"
    max_in_flight: Annotated[
        int, Meta(ge=1, le=4096, extra=WRITE, description="Sends of a task without an answer.")
    ] = 64
    batch_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=4 << 20,
            extra=WRITE,
            description="Bodies that go to a queue as one batch; 0: every message alone.",
        ),
    ] = 1 << 20
    send_timeout_ms: Annotated[
        int, Meta(ge=1, extra=WRITE, description="How long a send waits for its answer.")
    ] = 3000
    dedup_id: Annotated[
        bool,
        Meta(
            extra=WRITE,
            description="Ids are made of query, batch, task and row, so that a repeated batch has "
            "the same ids.",
        ),
    ] = True

    def __repr__(self) -> str:
        """Show what is set, without secrets: Spark prints plans and tracebacks."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"Options({shown})"

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, secrets hidden."""
        return {
            info.encode_name: "***" if info.name in SECRETS else value
            for info in FIELDS
            if (value := getattr(self, info.name)) != info.default
        }


SECRETS: Final = frozenset({"secret_key", "security_token"})
FIELDS: Final = msgspec.structs.fields(Options)
_BY_NAME: Final = {info.encode_name.lower(): info for info in FIELDS}


def parse(given: Mapping[str, str]) -> Options:
    """Return the options that Spark hands over; OptionError says which one is wrong."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in IGNORED:
            continue
        info = find_option(name, _BY_NAME)
        values[info.name] = option_value(info, text)
    return Options(**values)
