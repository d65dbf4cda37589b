# SPDX-License-Identifier: Apache-2.0
"""The operator's settings."""

import socket
from typing import Annotated, Final

import msgspec
from msgspec import Meta

PREFIX: Final = "COMETMQ_OPERATOR"
"""Prefix of the environment variables that set settings."""


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings of an operator."""

    default_image: Annotated[str, "Image of brokers whose BrokerGroup names none."] = (
        "cometmq:0.2.0"
    )
    namespace: Annotated[
        str, "Namespace of the operator itself, for its Lease and for policies."
    ] = "default"
    watch_namespaces: Annotated[
        str, "Namespaces whose objects are looked after, separated by semicolons; empty: all."
    ] = ""
    lease_name: Annotated[str, "Name of the Lease that decides which operator acts."] = (
        "cometmq-operator"
    )
    identity: Annotated[str, "Name of this operator in the Lease; in a pod, the pod's name."] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    resync_mills: Annotated[
        int,
        Meta(ge=1_000, le=3_600_000),
        "Interval at which a BrokerGroup is looked at without any news, in ms; for Topics and "
        "ConsumerGroups, ten times as long.",
    ] = 30_000
    drain_quiet_mills: Annotated[
        int,
        Meta(ge=1_000, le=3_600_000),
        "How long, in ms, a group or topic that is being deleted must receive no new messages "
        "before its producers are considered gone. Clients ask for routes every 30 s.",
    ] = 60_000
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port for metrics and health checks; 0 picks a free port, -1 opens none.",
    ] = 8080
    liveness_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port of kopf's liveness endpoint, /healthz, which a standby answers, too; -1 opens none.",
    ] = 8081
    webhook_address: Annotated[
        str,
        "Address of this operator, at which the API server reaches its admission webhooks; empty: "
        "no webhooks.",
    ] = ""
    webhook_port: Annotated[int, Meta(ge=1, le=65_535), "Port of the admission webhooks."] = 9443
