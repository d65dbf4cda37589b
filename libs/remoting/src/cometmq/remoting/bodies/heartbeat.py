# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: the groups and subscriptions of a client.

Enumerations are kept as strings, so that an unknown value does not cause a newer client's heartbeat
to be rejected.

Compatibility: Java reads an enumeration by name or by ordinal, and the C++ client sends ordinals.
Decoded values always hold the name.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from cometmq.remoting.integers import Int32, Int64

if TYPE_CHECKING:
    EnumName: TypeAlias = str
else:  # as decoded; ConsumerData converts numbers to names at once
    EnumName = str | int

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class SubscriptionData(msgspec.Struct, rename="camel"):
    """A consumer's subscription to a topic; `code_set` holds the tag codes of `tags_set`."""

    class_filter_mode: bool = False
    code_set: list[Int32] = []
    expression_type: str = "TAG"
    filter_class_source: str | None = None
    sub_string: str = ""
    sub_version: Int64 = 0
    tags_set: list[str] = []
    topic: str = ""


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a client."""

    consume_from_where: EnumName = "CONSUME_FROM_LAST_OFFSET"
    consume_type: EnumName = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: EnumName = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        kinds = self.consume_from_where, self.consume_type, self.message_model
        if type(kinds[0]) is type(kinds[1]) is type(kinds[2]) is str:
            return  # usual; a body may have 40,000 groups before they are counted
        self.consume_from_where = _name(self.consume_from_where, CONSUME_FROM_WHERE)
        self.consume_type = _name(self.consume_type, CONSUME_TYPES)
        self.message_model = _name(self.message_model, MESSAGE_MODELS)


class ProducerData(msgspec.Struct, gc=False, rename="camel"):
    """One producer group of a client."""

    group_name: str = ""


class Heartbeat(msgspec.Struct, rename="camel"):
    """Body of HEART_BEAT; the last two members were added in 5.x."""

    client_id: str = msgspec.field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = msgspec.field(name="withoutSub", default=None)


class ClientConfigCheck(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG, which asks whether the subscription is acceptable."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


def _name(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    if not 0 <= value < len(names):
        raise ValueError(
            f"{value} is not an ordinal of the enumeration that begins with {names[0]}"
        )
    return names[value]
