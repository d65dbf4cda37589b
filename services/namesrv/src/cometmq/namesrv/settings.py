# SPDX-License-Identifier: Apache-2.0
"""Settings of the name server, under RocketMQ's names.

The table of refused and ignored keys has those of the name servers of RocketMQ 4.9 and 5.5 that are
no settings here. Together with the fields of `NamesrvSettings`, it has every key of 5.5.0's answer
to GET_NAMESRV_CONFIG (319) and of its ControllerConfig; tests/compat compares it with a name
server.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import MUTABLE, PATH, Natural, Positive
from cometmq.runtime import tls_keys
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import COMMAND_LINE, Loaded, Origin, load
from cometmq.runtime.settings.foreign import ACCESS_CONTROL, Foreign, because, refusals

_REFUSED: Final = {
    **ACCESS_CONTROL,
    **refusals(
        ["enableControllerInNamesrv"],
        "the controller of RocketMQ 5, which chooses masters, is not served",
        "run cometmq elector for each broker group with failover, or set it to false",
    ),
    **refusals(
        ["supportActingMaster"],
        "no slave acts as master here",
        "use broker groups with failover, or set it to false",
    ),
    **refusals(
        ["enableTopicList", "enableAllTopicList"],
        "the lists of topics are open to whoever reaches the port",
        "close the port to them, and set it to true",
        accepted=("true",),
    ),
}
_HARMLESS: Final = because({
    "one event loop serves all requests, without thread pools and their queues": (
        "clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolNums"
        " defaultThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads"
        " serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverSelectorThreads"
        " serverWorkerThreads unRegisterBrokerQueueCapacity"
    ),
    "the system sizes socket buffers, and writeBufferTotalBytes limits the program's own": (
        "serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize"
        " serverSocketSndBufSize useEpollNativeSelector writeBufferHighWaterMark"
        " writeBufferLowWaterMark"
    ),
    "brokerExpireMs and scanIntervalMs decide when a broker is dropped": (
        "scanNotActiveBrokerInterval"
    ),
    "routes are served from the start, and as brokers register them": (
        "deleteTopicWithBrokerRegistration enableShutdownGracefully needWaitForService"
        " notifyMinBrokerIdChanged returnOrderTopicConfigToBroker shutdownWaitTimeSeconds"
        " waitSecondsForService"
    ),
    "RocketMQ's installation and test centre are not used": (
        "configBlackList productEnvName rocketmqHome"
    ),
    "it belongs to the controller of RocketMQ 5": (
        "controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId"
        " controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums"
        " controllerType electMasterMaxRetryCount enableElectUncleanMaster isProcessReadEvent"
        " jRaftElectionTimeoutMs jRaftScanWaitTimeoutMs jRaftSnapshotIntervalSecs jRaftGroupId"
        " jRaftServerId jRaftInitConf jRaftControllerRPCAddr mappedFileSize"
        " notifyBrokerRoleChanged scanInactiveMasterInterval"
    ),
    "metrics have settings of their own": (
        "metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills"
        " metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader"
        " metricsGrpcExporterTarget metricsInDelta metricsLabel metricsPromExporterHost"
        " metricsPromExporterPort"
    ),
})  # fmt: skip

ROCKETMQ: Final = Foreign(_HARMLESS, _REFUSED)


def _home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


class NamesrvSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings of a name server."""

    FOREIGN: ClassVar = ROCKETMQ

    bind_address: Annotated[str, "Local address to listen on; if empty, all addresses."] = ""
    listen_port: Annotated[
        int, Meta(ge=0, le=65535), "Port for brokers and clients; 0 picks a free port."
    ] = 9876
    kv_config_path: Annotated[
        str, PATH, Meta(min_length=1), "File of the key-value configuration."
    ] = msgspec.field(default_factory=lambda: _home("kvConfig.json"))
    config_store_path: Annotated[
        str, PATH, Meta(min_length=1), "File that stores settings changed at run time."
    ] = msgspec.field(default_factory=lambda: _home("namesrv.properties"))
    order_message_enable: Annotated[
        bool, MUTABLE, "Add orderTopicConf from the KV table to routes."
    ] = False
    cluster_test: Annotated[
        bool, MUTABLE, "Accepted for RocketMQ's tools; no test centre is queried for routes."
    ] = False
    broker_expire_ms: Annotated[
        int, Meta(ge=1000), "How long a broker may be silent before it is dropped, in ms."
    ] = 120_000
    scan_interval_ms: Annotated[
        int, Meta(ge=100), "Interval of the scan for silent brokers, in ms."
    ] = 10_000
    lost_master_keep_ms: Annotated[
        Natural,
        "How long, in ms, a lost master of a group with failover stays in the routes unless the "
        "next master registers, so that its queues remain visible; 0 removes it at once.",
    ] = 10_000
    acl_enable: Annotated[
        bool,
        "Demand an administrator's account of whoever changes something: brokers that register, "
        "and administrators. Off as in RocketMQ, whose brokers sign no registrations.",
    ] = False
    acl_file: Annotated[
        str,
        PATH,
        "The accounts in RocketMQ's plain_acl.yml, as for brokers; with aclEnable. Changes take "
        "effect without a restart.",
    ] = msgspec.field(default_factory=lambda: _home("plain_acl.yml"))
    group_key_file: Annotated[
        str,
        PATH,
        "File with the keys of the broker groups with failover, one a line, as the brokers' "
        "groupKeyFile; or a folder with a file for each group, under its brokerName. "
        "Registrations and epochs of these groups are then believed only with a proof; the "
        "brokers must have their key first. If empty, an epoch excludes other brokers only for "
        "unprovenEpochMs. Changes of the files take effect without a restart.",
    ] = ""
    unproven_epoch_ms: Annotated[
        int,
        Meta(ge=1000, le=600_000),
        "How long, in ms, an epoch that is registered without a proof excludes a broker that "
        "claims another one and keeps registering; not less than the brokers' renewDeadlineMills.",
    ] = 10_000
    server_channel_max_idle_time_seconds: Annotated[
        Positive, "How long a connection may be silent before it is closed, in s."
    ] = 120
    connection_count_max: Annotated[
        Positive, "Maximum number of open connections; further connections are refused."
    ] = 10_000
    write_buffer_total_bytes: Annotated[
        int,
        Meta(ge=1024),
        "Limit on unsent bytes across all connections. Above it, the connections with the most "
        "unsent bytes are paused, and closed if they do not drain.",
    ] = 128 * 1024**2
    # Tables: see `limits.py`
    peer_share_max: Annotated[
        int,
        Meta(ge=1, le=100),
        MUTABLE,
        "Percentage of each limit of all peers together that one address may fill.",
    ] = 50
    brokers_max: Annotated[Positive, MUTABLE, "Maximum number of brokers."] = 10_000
    connection_brokers_max: Annotated[
        Positive, MUTABLE, "Maximum number of brokers that one connection registers."
    ] = 64
    topics_per_broker_max: Annotated[
        Positive, MUTABLE, "Maximum number of topics of a broker group."
    ] = 300_000
    route_entries_max: Annotated[
        Positive,
        MUTABLE,
        "Maximum number of topics, counted once for each broker group that has them: 160 to 300 "
        "MB (measured with 1,000,000; longest hold of the loop 17 ms), or 1.1 GB with names that "
        "no broker accepts: 255 characters, one of them an emoji.",
    ] = 1_000_000
    kv_entries_max: Annotated[Positive, MUTABLE, "Maximum number of key-values."] = 50_000
    kv_bytes_max: Annotated[
        int,
        Meta(ge=1024),
        MUTABLE,
        "Maximum size of all key-values as JSON. Answers to registrations contain those of ordered "
        "topics.",
    ] = 4 * 1024**2
    tls_server: tls_keys.ServerKeys = msgspec.field(default_factory=tls_keys.ServerKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65535),
        "Port for metrics and health checks on `bindAddress`; 0: any, -1: none.",
    ] = -1


def load_namesrv(
    file: Path | None = None,
    cli: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    *,
    args: Sequence[str] = (),
) -> Loaded[NamesrvSettings]:
    """Load the settings of a name server, including those saved by an earlier run.

    Compatibility: changes are saved to the properties file given on the command line, as in
    RocketMQ. If none is given, they go to `configStorePath`, which the next start reads.
    """

    def load_from(path: Path | None, cli: Mapping[str, str]) -> Loaded[NamesrvSettings]:
        return load(
            NamesrvSettings,
            prefix=PROGRAMS["namesrv"].prefix,
            file=path,
            cli=cli,
            options=options,
            args=args,
        )

    given = cli or {}
    if file is not None and file.suffix != ".toml":
        loaded = load_from(file, {"configStorePath": str(file), **given})
        if "configStorePath" in given:
            return loaded
        origins = {**loaded.origins, "configStorePath": Origin(COMMAND_LINE, f"-c {file}")}
        return msgspec.structs.replace(loaded, origins=origins)
    loaded = load_from(file, given)
    saved = Path(loaded.value.config_store_path)
    return load_from(saved, given) if file is None and saved.is_file() else loaded
