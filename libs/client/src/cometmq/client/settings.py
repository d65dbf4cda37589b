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
