# SPDX-License-Identifier: Apache-2.0
"""Converts the text of options to values; errors name the option."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import FieldInfo

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
