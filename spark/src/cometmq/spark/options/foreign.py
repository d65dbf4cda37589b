# SPDX-License-Identifier: Apache-2.0
"""Advice for option names of other sources: which of our options to use instead.

Programs are often ported from Spark's Kafka source or from another connector of RocketMQ. For these
names, the closest name in our list would be misleading.
"""

from typing import Final

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
