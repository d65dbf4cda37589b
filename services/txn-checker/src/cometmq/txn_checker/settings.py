# SPDX-License-Identifier: Apache-2.0
"""Settings of the txn-checker, under the names of RocketMQ's broker settings where these exist."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import MUTABLE, PATH, SECRET, Natural, Positive, variable
from cometmq.runtime import tls_keys

_MINUTE_MS = 60_000


class TxnCheckerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings of a txn-checker."""

    namesrv_addr: Annotated[
        str,
        variable("NAMESRV_ADDR"),
        MUTABLE,
        "Name servers as host:port, separated by semicolons.",
    ] = ""
    store_path_root_dir: Annotated[
        str, PATH, Meta(min_length=1), "Folder of the state tables, with a subfolder per broker."
    ] = msgspec.field(default_factory=lambda: str(Path.home() / "txn-checker"))
    transaction_time_out: Annotated[Natural, "Age of a transaction at its first check, in ms."] = (
        6_000
    )
    transaction_check_max: Annotated[
        int,
        Meta(ge=1, le=65_535),
        "Number of checks after which a transaction is set aside: its half message is moved to "
        "TRANS_CHECK_MAX_TIME_TOPIC.",
    ] = 15
    transaction_check_interval: Annotated[
        int, Meta(ge=10), "Pause between two rounds of checks, in ms."
    ] = _MINUTE_MS
    file_reserved_time: Annotated[
        Positive, "Age at which an open transaction is always set aside, in hours."
    ] = 72
    questions_per_second: Annotated[
        Positive, "Maximum number of checks per second for each broker."
    ] = 5_000
    poll_name_server_interval: Annotated[
        int, Meta(ge=10), "Interval between lookups of the masters, in ms."
    ] = 30_000
    persist_interval: Annotated[
        int, Meta(ge=10), "Interval between commits of progress to the brokers, in ms."
    ] = 5_000
    checkpoint_interval: Annotated[
        int, Meta(ge=10), "Interval between syncs of the state tables to disk, in ms."
    ] = _MINUTE_MS
    back_off_max: Annotated[Positive, "Longest pause before retrying a failed broker, in ms."] = (
        30_000
    )
    request_timeout: Annotated[Positive, "Timeout of a request to a broker, in ms."] = 3_000
    pull_suspend: Annotated[
        Natural, "How long a broker holds a pull that finds nothing, in ms."
    ] = 15_000
    pull_batch_size: Annotated[int, Meta(ge=1, le=4096), "Messages per pull."] = 256
    pull_pause: Annotated[
        Natural,
        "Pause in ms after reading up to the end of a queue; a longer pause makes larger batches.",
    ] = 500
    access_key: Annotated[
        str,
        "Access key for brokers with access control; it must belong to an administrator account.",
    ] = ""
    secret_key: Annotated[str, SECRET, "Secret key of the account."] = ""
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    bind_address: Annotated[str, "Local address of the HTTP port; if empty, all addresses."] = ""
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port for metrics and health checks; 0 picks a free port, -1 opens none.",
    ] = -1

    @property
    def age_max_s(self) -> int:
        """The age at which an open transaction is set aside, however often it was checked."""
        return self.file_reserved_time * 3_600
