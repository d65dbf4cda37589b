# SPDX-License-Identifier: Apache-2.0
"""The keys of RocketMQ 5.5's broker that are no settings here.

Together with the fields of `BrokerSettings`, the table has every key of 5.5.0's answer to
GET_BROKER_CONFIG (26) and of its AuthConfig; tests/compat compares it with a broker.
"""

from typing import Final

from cometmq.runtime.settings.foreign import ACCESS_CONTROL, Foreign, because, refusals

_TO_JSON: Final = (
    "set it to {}, after RocketMQ's mqadmin rocksDBConfigToJson has written topics,"
    " subscriptionGroups and consumerOffsets to JSON"
)
_REFUSED: Final = {
    **ACCESS_CONTROL,
    **refusals(
        ["enableControllerMode"],
        "the controller of RocketMQ 5, which chooses masters, is not served",
        "set groupRecord for a broker group with failover, or set it to false for a fixed role",
    ),
    **refusals(
        ["brokerConfigPaths"],
        "a container of brokers is not served, and one broker would start with other settings",
        "start each of the files with cometmq broker -c",
        accepted=(),
    ),
    **refusals(
        ["enableSlaveActingMaster"],
        "no slave acts as master here",
        "set groupRecord for a broker group with failover, or set it to false",
    ),
    **refusals(
        ["inSyncReplicas", "minInSyncReplicas"],
        "a master with brokerRole=SYNC_MASTER waits for one slave, not for more",
        "set groupRecord and minInSync for a broker group with more copies, or set it to 2",
        accepted=("1", "2"),
    ),
    **refusals(
        ["allAckInSyncStateSet"],
        "the in-sync set of a controller is not served",
        "set groupRecord for a broker group with failover, or set it to false",
    ),
    **refusals(
        ["rejectPullConsumerEnable"],
        "pulls that RocketMQ 5 refuses would be served",
        "take the permission to read from the topics or groups, or set it to false",
    ),
    **refusals(
        ["litePullMessageEnable"],
        "pulls that RocketMQ 5 refuses would be served",
        "take the permission to read from the topics or groups, or set it to true",
        accepted=("true",),
    ),
    **refusals(
        ["useStaticSubscription"],
        "consumers choose their subscriptions here, whatever their group's settings name",
        "set it to false",
    ),
    **refusals(
        ["storeType"],
        "queues and tables in RocksDB are not read",
        _TO_JSON.format("default"),
        accepted=("default",),
    ),
    **refusals(
        ["configManagerVersion"],
        "tables in RocksDB are not read",
        _TO_JSON.format("v1"),
        accepted=("v1",),
    ),
    **refusals(
        ["timerRocksDBEnable", "transRocksDBEnable"],
        "timers and half messages in RocksDB are not read",
        "set it to false in RocketMQ 5 and let it deliver what is pending first",
    ),
}

_HARMLESS: Final = because({
    "it belongs to the access control of RocketMQ 5": (
        "authConfigPath authenticationProvider authenticationMetadataProvider"
        " authenticationStrategy authenticationWhitelist initAuthenticationUser"
        " innerClientAuthenticationCredentials authorizationProvider"
        " authorizationMetadataProvider authorizationStrategy authorizationWhitelist"
        " migrateAuthFromV1Enabled userCacheMaxNum userCacheExpiredSecond userCacheRefreshSecond"
        " aclCacheMaxNum aclCacheExpiredSecond aclCacheRefreshSecond"
        " statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond"
        " statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond"
    ),
    "it belongs to the controller and the acting masters of RocketMQ 5": (
        "asyncLearner brokerElectionPriority brokerHeartbeatInterval brokerNotActiveTimeoutMillis"
        " checkSyncStateSetPeriod controllerAddr controllerHeartBeatTimeoutMills"
        " enableAutoInSyncReplicas enableRemoteEscape fetchControllerAddrByDnsLookup"
        " haMaxGapNotInSync haMaxTimeSlaveNotCatchup replicasPerDiskPartition"
        " sendHeartbeatTimeoutMillis skipPreOnline syncBrokerMemberGroupPeriod"
        " syncBrokerMetadataPeriod syncControllerMetadataPeriod"
        " syncMasterFlushOffsetWhenStartup totalReplicas"
    ),
    "one event loop serves all requests, without thread pools and their queues": (
        "ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolQueueCapacity"
        " asyncSendEnable batchDispatchRequestThreadPoolNums disableCallbackExecutor"
        " disableNettyWorkerGroup dispatchFromSenderThread enableFastChannelEventProcess"
        " litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity"
        " loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums"
        " loadBalanceThreadPoolQueueCapacity"
        " serverNettyWorkerGroupEnable waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue"
        " waitTimeMillsInLitePullQueue"
    ),
    "the broker's own calls and connections need no such limits": (
        "channelExpiredTimeout enableReconnectForGoAway fetchNameSrvAddrByDnsLookup"
        " fetchNamesrvAddrInterval forwardTimeout isScanAvailableNameSrv"
        " maxReconnectIntervalTimeSeconds socksProxyConfig updateNameServerAddrPeriod"
    ),
    "registrations are sent whole, and to every name server": (
        "compatibleWithOldNameSrv enableSingleTopicRegister enableSplitMetadata"
        " enableSplitRegistration splitMetadataSize splitRegistrationSize"
    ),
    "pop consumers are not served": (
        "appendAckAsync appendCkAsync defaultMessageRequestMode defaultPopShareQueueNum"
        " enableCleanExpiredOffset enableNotifyAfterPopOrderLockRelease"
        " enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog"
        " enablePopMessageThreshold enablePopMetrics enableRetryTopicV2 enableSkipLongAwaitingAck"
        " initPopOffsetByCheckMsgInMem maxMessageFilterNumForNotification maxPopPollingSize"
        " popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut"
        " popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit"
        " popConsumerKVServiceLog popFromRetryProbability popFromRetryProbabilityForPriority"
        " popInflightMessageThreshold popLongPollingForceNotifyInterval"
        " popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize"
        " popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes"
        " popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent priorityOrderAsc"
        " retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow"
        " reviveQueueNum reviveScanTime serverLoadBalancerEnable skipWhenCKRePutReachMaxTimes"
        " useMessageFilterForNotification useSeparateRetryQueue"
    ),
    "light topics and queues (LMQ) are not served": (
        "enableLiteEventMode enableLitePopLog enableLmqQuota enableLmqStats liteEventCheckInterval"
        " liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup"
        " liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable"
        " liteLagLatencyTopK liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills"
        " liteTtlCheckInterval maxClientEventCount maxLiteSubscriptionCount minLiteTTl"
    ),
    "nothing is kept in RocksDB": (
        "bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin"
        " combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes"
        " combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq"
        " enableRocksDBLog indexRocksDBEnable iteratorWhenUseRocksdbConsumeQueue"
        " maxRocksDBIndexQueryDays memTableFlushIntervalMs"
        " realTimePersistRocksDBConfig rocksdbCQDoubleWriteEnable rocksdbCompressionType"
        " rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec"
        " timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps"
        " timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps"
        " transWriteOriginTransHalfEnable transactionCheckRocksdbCoreThreads"
        " transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity"
        " useSeparateStorePathForRocksdbCQ useSingleRocksDBForAllConfigs"
    ),
    "timers are kept in queues, without wheel and timer log": (
        "appendTopicForTimerDeleteKey mappedFileSizeTimerLog timerCheckMetricsWhen"
        " timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics"
        " timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs"
        " timerGetMessageThreadNum timerInterceptDelayLevel timerMetricSmallThreshold"
        " timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum"
        " timerReputServiceCorePoolSize timerReputServiceMaxPoolSize"
        " timerReputServiceQueueCapacity timerRollWindowSlot timerSkipUnknownError"
        " timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelSnapshotFlush"
        " timerWheelSnapshotIntervalMs"
    ),
    "recalls (370) are always served": (
        "allowRecallWhenBrokerNotWriteable recallMessageEnable timerRecallToTimeWheelEnable"
        " timerRecallToTimelineEnable"
    ),
    "topics are not compacted": (
        "compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal"
        " compactionThreadNum enableCompaction maxOffsetMapSize"
    ),
    "files are not mapped, and the store has other buffers": (
        "cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapInterval"
        " commitLogSwapMapReserveFileNum dataReadAheadEnable enableAcceleratedRecovery"
        " enableAsyncReput enableBuildConsumeQueueConcurrently"
        " enableLogConsumeQueueRepeatedlyBuildWhenRecover enableRunningFlagsInFlush"
        " logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum"
        " mappedFileSwapEnable maxAsyncPutMessageRequests putConsumeQueueDataByFileChannel"
        " sharedByteBufferNum spinLockCollisionRetreatOptimalDegree topicQueueLockNum useABSLock"
        " wakeCommitWhenPutMessage wakeFlushWhenPutMessage writeWithoutMmap"
    ),
    "recovery starts at the checkpoint and proves every record": (
        "checkCommitLogOffsetOnRecover commitLogRecoverMaxNum enabledAppendPropCRC"
        " forceVerifyPropCRC maxRecoveryCommitlogFiles recheckReputOffsetFromCq"
        " recoverConcurrently recoverThreadPoolNums"
    ),
    "queues and index are always written and checked": (
        "correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dispatchCqCacheNum"
        " dispatchCqThreads indexFileReadEnable indexFileWriteEnable maxConsumeQueueScan"
        " sampleCountThreshold sampleSteps travelCqFileNumWhenGetMessage"
    ),
    "batches are stored as single messages": (
        "mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable"
    ),
    "a slave copies the whole log, and flow control has settings of its own": (
        "enableBatchPush haFlowControlEnable maxChecksumRange maxSlaveResendLength"
        " putMessageTimeout readUnCommitted syncFromLastFile"
    ),
    "cold data is read on a thread of its own, without limits for it": (
        "accessMessageInMemoryHotRatio cgColdReadThreshold coldCtrStrategyEnable"
        " coldDataFlowControlEnable coldDataScanEnable enableNetWorkFlowControl"
        " globalColdReadThreshold usePIDColdCtrStrategy"
    ),
    "statistics and metrics have settings of their own": (
        "accountStatsEnable accountStatsPrintZeroValues commercialSizePerMsg"
        " enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics"
        " enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics"
        " estimateAccumulation maxStatsIdleTimeInMinutes metricGrpcExporterIntervalInMills"
        " metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills"
        " metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader"
        " metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit"
        " metricsPromExporterHost metricsPromExporterPort printChannelGroups"
        " printChannelGroupsMinNum transactionMetricFlushInterval"
    ),
    "offsets and tables are journaled": (
        "broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond"
        " consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep enableBroadcastOffsetStore"
        " persistConsumerOffsetIncrementally"
    ),
    "resets, topics, clients and op messages are handled as in RocketMQ 4.9": (
        "autoMessageVersionOnTopicLen clearRetryTopicWhenDeleteTopic cleanOfflineBrokerInterval"
        " configBlackList enableCreateSysGroup enableMixedMessageType enableRegisterProducer"
        " lockInStrictMode maxFilterMessageSize maxTopicLength pullBatchMaxMessageCount"
        " realTimeNotifyConsumerChange subscriptionExpiredTimeout transactionOpBatchInterval"
        " transactionOpMsgMaxSize useServerSideResetOffset validateSystemTopicWhenUpdateTopic"
    ),
    "retention, start and stop have settings of their own": (
        "deleteFileBatchMax disappearTimeAfterStart enableShutdownGracefully isBrokerContainer"
        " isInBrokerContainer logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum"
        " shutdownWaitTimeSeconds"
    ),
})  # fmt: skip

ROCKETMQ_5: Final = Foreign(_HARMLESS, _REFUSED)
