# SPDX-License-Identifier: Apache-2.0
"""The keys of the name servers of RocketMQ 4.9 and 5.5 that are no settings here.

Together with the fields of `NamesrvSettings`, the table has every key of 5.5.0's answer to
GET_NAMESRV_CONFIG (319) and of its ControllerConfig; tests/compat compares it with a name server.
"""

from typing import Final

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
