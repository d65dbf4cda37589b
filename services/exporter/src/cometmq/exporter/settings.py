# SPDX-License-Identifier: Apache-2.0
"""Settings of the exporter.

RocketMQ's exporter asks once a minute, ten clients at a time, and listens on port 5557
(apache/rocketmq-exporter, application.yml).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import SECRET, Natural, Positive, variable
from cometmq.runtime import tls_keys


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings of an exporter."""

    namesrv_addr: Annotated[
        str, variable("NAMESRV_ADDR"), "Name servers as host:port, separated by semicolons."
    ] = ""
    collect_interval: Annotated[
        int, Meta(ge=10), "Pause between two rounds of questions, in ms."
    ] = 15_000
    collect_timeout: Annotated[
        int,
        Meta(ge=10),
        "Longest duration of a round, in ms; consumers not asked by then are left out.",
    ] = 60_000
    collect_concurrency: Annotated[
        int, Meta(ge=1, le=1_000), "Maximum number of concurrent requests."
    ] = 10
    request_timeout: Annotated[
        Positive, "Timeout of a request to a name server or broker, in ms."
    ] = 3_000
    client_timeout: Annotated[
        Positive,
        "Timeout of a request that a broker forwards to a consumer, in ms; brokers give up after "
        "10,000.",
    ] = 3_000
    groups_max: Annotated[
        Positive, "Maximum number of consumer groups whose members are listed."
    ] = 5_000
    clients_max: Annotated[Positive, "Maximum number of consumers asked in a round."] = 2_000
    metrics_rows_max: Annotated[
        Natural,
        "Maximum number of rows (a topic of a consumer, or a group) that one metric shows. "
        "`cometmq_exporter_left_out` counts what these limits leave out.",
    ] = 5_000
    group_count_enable: Annotated[
        bool,
        "Also show `rocketmq_group_count`. Its labels list the addresses of all members, so every "
        "restart of a consumer starts a new series in Prometheus.",
    ] = False
    access_key: Annotated[
        str,
        "Access key for brokers with access control; one with SUB on the groups whose consumers "
        "it asks.",
    ] = ""
    secret_key: Annotated[str, SECRET, "Secret key of the account."] = ""
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    bind_address: Annotated[str, "Local address of the HTTP port; if empty, all addresses."] = ""
    admin_http_port: Annotated[
        int, Meta(ge=0, le=65_535), "Port for metrics and health checks; 0 picks a free port."
    ] = 5557
