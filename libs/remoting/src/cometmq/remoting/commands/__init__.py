# SPDX-License-Identifier: Apache-2.0
"""COMMANDS: a table of every request in the protocol.

Client, server, documentation (docs/reference/commands.md) and fuzz tests are derived from this
table. The codes 13, 22, 23, 27, 209 to 214 and 302 are unused in RocketMQ 4.9.4: only their names
exist, and every server answers them with REQUEST_CODE_NOT_SUPPORTED.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.remoting.bodies.acl import AclConfig
from cometmq.remoting.bodies.codec import (
    BATCH,
    BYTES,
    PROPERTIES_TEXT,
    RECORDS,
    REGISTER,
    json_body,
)
from cometmq.remoting.bodies.connections import (
    ConsumerConnections,
    ProducerConnections,
    ProducerTable,
)
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, Heartbeat
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.offsets import (
    ConsumerOffsetTable,
    ConsumerStatus,
    CorrectionOffsets,
    DelayOffsetTable,
    QueueOffsetTable,
)
from cometmq.remoting.bodies.overview import BrokerOverview
from cometmq.remoting.bodies.queues import ConsumerIdList, GroupList, TopicList
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.bodies.stats import (
    BrokerConsumeStats,
    BrokerStatsData,
    ConsumeQueueEntries,
    ConsumeStats,
    ConsumeTimeSpans,
    TopicStats,
)
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import (
    acl,
    admin,
    callbacks,
    clients,
    groups,
    namesrv,
    offsets,
    pull,
    queries,
    request_reply,
    send,
    topics,
    transactions,
)
from cometmq.remoting.commands.table import NO_HEADER, Command, NoHeader, command_table
from cometmq.remoting.types import Direction

__all__ = ["COMMANDS", "NO_HEADER", "Command", "NoHeader", "command_table"]

COMMANDS: Final[Mapping[int, Command]] = command_table(
    # Sending
    Command(Code.SEND_MESSAGE, send.SendMessage, send.SendMessageReply, body=BYTES),
    Command(Code.SEND_MESSAGE_V2, send.SendMessageV2, send.SendMessageReply, body=BYTES),
    Command(Code.SEND_BATCH_MESSAGE, send.SendMessageV2, send.SendMessageReply, body=BATCH),
    Command(Code.CONSUMER_SEND_MSG_BACK, send.ConsumerSendMsgBack, NO_HEADER),
    Command(
        Code.SEND_REPLY_MESSAGE,
        request_reply.SendReplyMessage,
        request_reply.SendReplyMessageReply,
        body=BYTES,
    ),
    Command(
        Code.SEND_REPLY_MESSAGE_V2,
        request_reply.SendReplyMessageV2,
        request_reply.SendReplyMessageReply,
        body=BYTES,
    ),
    # Pulling and queries
    Command(Code.PULL_MESSAGE, pull.PullMessage, pull.PullMessageReply, reply_body=RECORDS),
    Command(Code.LITE_PULL_MESSAGE, pull.PullMessage, pull.PullMessageReply, reply_body=RECORDS),
    Command(
        Code.QUERY_MESSAGE, queries.QueryMessage, queries.QueryMessageReply, reply_body=RECORDS
    ),
    Command(Code.VIEW_MESSAGE_BY_ID, queries.ViewMessageById, NO_HEADER, reply_body=RECORDS),
    Command(
        Code.QUERY_CONSUME_QUEUE,
        queries.QueryConsumeQueue,
        NO_HEADER,
        reply_body=json_body(ConsumeQueueEntries),
    ),
    # Offsets
    Command(
        Code.QUERY_CONSUMER_OFFSET, offsets.QueryConsumerOffset, offsets.QueryConsumerOffsetReply
    ),
    Command(Code.UPDATE_CONSUMER_OFFSET, offsets.UpdateConsumerOffset, NO_HEADER, oneway=True),
    Command(
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        offsets.SearchOffsetByTimestamp,
        offsets.SearchOffsetByTimestampReply,
    ),
    Command(Code.GET_MAX_OFFSET, offsets.GetMaxOffset, offsets.GetMaxOffsetReply),
    Command(Code.GET_MIN_OFFSET, offsets.GetMinOffset, offsets.GetMinOffsetReply),
    Command(
        Code.GET_EARLIEST_MSG_STORETIME,
        offsets.GetEarliestMsgStoretime,
        offsets.GetEarliestMsgStoretimeReply,
    ),
    Command(
        Code.GET_ALL_CONSUMER_OFFSET,
        NO_HEADER,
        NO_HEADER,
        reply_body=json_body(ConsumerOffsetTable),
    ),
    Command(
        Code.GET_ALL_DELAY_OFFSET, NO_HEADER, NO_HEADER, reply_body=json_body(DelayOffsetTable)
    ),
    # Clients
    Command(Code.HEART_BEAT, NO_HEADER, NO_HEADER, body=json_body(Heartbeat)),
    Command(Code.UNREGISTER_CLIENT, clients.UnregisterClient, NO_HEADER),
    Command(Code.DISCONNECT_CLIENT, clients.DisconnectClient, clients.DisconnectClientReply),
    Command(
        Code.GET_CONSUMER_LIST_BY_GROUP,
        clients.GetConsumerListByGroup,
        NO_HEADER,
        reply_body=json_body(ConsumerIdList),
    ),
    Command(Code.CHECK_CLIENT_CONFIG, NO_HEADER, NO_HEADER, body=json_body(ClientConfigCheck)),
    Command(
        Code.LOCK_BATCH_MQ,
        NO_HEADER,
        NO_HEADER,
        body=json_body(LockBatch),
        reply_body=json_body(LockBatchReply),
    ),
    Command(Code.UNLOCK_BATCH_MQ, NO_HEADER, NO_HEADER, body=json_body(LockBatch)),
    # Transactions
    Command(Code.END_TRANSACTION, transactions.EndTransaction, NO_HEADER, oneway=True),
    Command(Code.RESUME_CHECK_HALF_MESSAGE, transactions.ResumeCheckHalfMessage, NO_HEADER),
    Command(
        Code.ASK_TRANSACTION_STATE,
        transactions.AskTransactionState,
        transactions.AskTransactionStateReply,
    ),
    Command(Code.SET_TRANSACTION_ASIDE, transactions.SetTransactionAside, NO_HEADER),
    Command(Code.GET_BROKER_OVERVIEW, NO_HEADER, NO_HEADER, reply_body=json_body(BrokerOverview)),
    # Requests of a broker to its clients
    Command(
        Code.CHECK_TRANSACTION_STATE,
        transactions.CheckTransactionState,
        NO_HEADER,
        oneway=True,
        direction=Direction.TO_CLIENT,
        body=RECORDS,
    ),
    Command(
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        callbacks.NotifyConsumerIdsChanged,
        NO_HEADER,
        oneway=True,
        direction=Direction.TO_CLIENT,
    ),
    Command(
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        callbacks.ResetConsumerClientOffset,
        NO_HEADER,
        oneway=True,
        direction=Direction.TO_CLIENT,
        body=json_body(QueueOffsetTable),
    ),
    Command(
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        callbacks.GetConsumerStatusFromClient,
        NO_HEADER,
        direction=Direction.TO_CLIENT,
        reply_body=json_body(ConsumerStatus),
    ),
    Command(
        Code.GET_CONSUMER_RUNNING_INFO,
        callbacks.GetConsumerRunningInfo,
        NO_HEADER,
        direction=Direction.TO_CLIENT,
        reply_body=json_body(ConsumerRunningInfo),
    ),
    Command(
        Code.CONSUME_MESSAGE_DIRECTLY,
        callbacks.ConsumeMessageDirectly,
        NO_HEADER,
        direction=Direction.TO_CLIENT,
        body=RECORDS,
        reply_body=json_body(ConsumeMessageDirectlyResult),
    ),
    Command(
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
        request_reply.PushReplyMessageToClient,
        NO_HEADER,
        direction=Direction.TO_CLIENT,
        body=BYTES,
    ),
    # Name server
    Command(Code.PUT_KV_CONFIG, namesrv.PutKvConfig, NO_HEADER),
    Command(Code.GET_KV_CONFIG, namesrv.GetKvConfig, namesrv.GetKvConfigReply),
    Command(Code.DELETE_KV_CONFIG, namesrv.DeleteKvConfig, NO_HEADER),
    Command(
        Code.REGISTER_BROKER,
        namesrv.RegisterBroker,
        namesrv.RegisterBrokerReply,
        body=REGISTER,
        reply_body=json_body(KVTable),
    ),
    Command(Code.UNREGISTER_BROKER, namesrv.UnregisterBroker, NO_HEADER),
    Command(
        Code.GET_ROUTEINFO_BY_TOPIC,
        namesrv.GetRouteinfoByTopic,
        NO_HEADER,
        reply_body=json_body(TopicRoute),
    ),
    Command(Code.GET_BROKER_CLUSTER_INFO, NO_HEADER, NO_HEADER, reply_body=json_body(ClusterInfo)),
    Command(
        Code.WIPE_WRITE_PERM_OF_BROKER,
        namesrv.WipeWritePermOfBroker,
        namesrv.WipeWritePermOfBrokerReply,
    ),
    Command(
        Code.ADD_WRITE_PERM_OF_BROKER,
        namesrv.AddWritePermOfBroker,
        namesrv.AddWritePermOfBrokerReply,
    ),
    Command(
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        NO_HEADER,
        NO_HEADER,
        reply_body=json_body(TopicList),
    ),
    Command(Code.DELETE_TOPIC_IN_NAMESRV, namesrv.DeleteTopicInNamesrv, NO_HEADER),
    Command(
        Code.GET_KVLIST_BY_NAMESPACE,
        namesrv.GetKvlistByNamespace,
        NO_HEADER,
        reply_body=json_body(KVTable),
    ),
    Command(
        Code.GET_TOPICS_BY_CLUSTER,
        namesrv.GetTopicsByCluster,
        NO_HEADER,
        reply_body=json_body(TopicList),
    ),
    Command(
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NO_HEADER, NO_HEADER, reply_body=json_body(TopicList)
    ),
    Command(Code.GET_UNIT_TOPIC_LIST, NO_HEADER, NO_HEADER, reply_body=json_body(TopicList)),
    Command(
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST, NO_HEADER, NO_HEADER, reply_body=json_body(TopicList)
    ),
    Command(
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        NO_HEADER,
        NO_HEADER,
        reply_body=json_body(TopicList),
    ),
    Command(Code.UPDATE_NAMESRV_CONFIG, NO_HEADER, NO_HEADER, body=PROPERTIES_TEXT),
    Command(Code.GET_NAMESRV_CONFIG, NO_HEADER, NO_HEADER, reply_body=PROPERTIES_TEXT),
    Command(
        Code.QUERY_DATA_VERSION,
        namesrv.QueryDataVersion,
        namesrv.QueryDataVersionReply,
        body=json_body(DataVersion),
        reply_body=json_body(DataVersion),
    ),
    # Topics and groups of a broker
    Command(Code.UPDATE_AND_CREATE_TOPIC, topics.UpdateAndCreateTopic, NO_HEADER),
    Command(
        Code.GET_ALL_TOPIC_CONFIG, NO_HEADER, NO_HEADER, reply_body=json_body(TopicConfigTable)
    ),
    Command(
        Code.GET_TOPIC_STATS_INFO,
        topics.GetTopicStatsInfo,
        NO_HEADER,
        reply_body=json_body(TopicStats),
    ),
    Command(Code.DELETE_TOPIC_IN_BROKER, topics.DeleteTopicInBroker, NO_HEADER),
    Command(
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        NO_HEADER,
        NO_HEADER,
        reply_body=json_body(TopicList),
    ),
    Command(
        Code.GET_TOPIC_CONFIG, topics.GetTopicConfig, NO_HEADER, reply_body=json_body(TopicConfig)
    ),
    Command(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        NO_HEADER,
        NO_HEADER,
        body=json_body(SubscriptionGroupConfig),
    ),
    Command(
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        NO_HEADER,
        NO_HEADER,
        reply_body=json_body(SubscriptionGroupTable),
    ),
    Command(Code.DELETE_SUBSCRIPTIONGROUP, groups.DeleteSubscriptiongroup, NO_HEADER),
    Command(
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        groups.GetSubscriptiongroupConfig,
        NO_HEADER,
        reply_body=json_body(SubscriptionGroupConfig),
    ),
    # Administration of a broker
    Command(Code.UPDATE_BROKER_CONFIG, NO_HEADER, NO_HEADER, body=PROPERTIES_TEXT),
    Command(
        Code.GET_BROKER_CONFIG, NO_HEADER, admin.GetBrokerConfigReply, reply_body=PROPERTIES_TEXT
    ),
    Command(Code.GET_BROKER_RUNTIME_INFO, NO_HEADER, NO_HEADER, reply_body=json_body(KVTable)),
    Command(
        Code.GET_CONSUMER_CONNECTION_LIST,
        admin.GetConsumerConnectionList,
        NO_HEADER,
        reply_body=json_body(ConsumerConnections),
    ),
    Command(
        Code.GET_PRODUCER_CONNECTION_LIST,
        admin.GetProducerConnectionList,
        NO_HEADER,
        reply_body=json_body(ProducerConnections),
    ),
    Command(
        Code.GET_CONSUME_STATS,
        admin.GetConsumeStats,
        NO_HEADER,
        reply_body=json_body(ConsumeStats),
    ),
    Command(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        admin.InvokeBrokerToResetOffset,
        NO_HEADER,
        reply_body=json_body(QueueOffsetTable),
    ),
    Command(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        admin.InvokeBrokerToGetConsumerStatus,
        NO_HEADER,
        reply_body=json_body(ConsumerStatus),
    ),
    Command(
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        admin.QueryTopicConsumeByWho,
        NO_HEADER,
        reply_body=json_body(GroupList),
    ),
    Command(
        Code.REGISTER_FILTER_SERVER, admin.RegisterFilterServer, admin.RegisterFilterServerReply
    ),
    Command(
        Code.QUERY_CONSUME_TIME_SPAN,
        admin.QueryConsumeTimeSpan,
        NO_HEADER,
        reply_body=json_body(ConsumeTimeSpans),
    ),
    Command(Code.CLEAN_EXPIRED_CONSUMEQUEUE, NO_HEADER, NO_HEADER),
    Command(Code.CLEAN_UNUSED_TOPIC, NO_HEADER, NO_HEADER),
    Command(Code.DELETE_EXPIRED_COMMITLOG, NO_HEADER, NO_HEADER),
    Command(
        Code.QUERY_CORRECTION_OFFSET,
        admin.QueryCorrectionOffset,
        NO_HEADER,
        reply_body=json_body(CorrectionOffsets),
    ),
    Command(Code.CLONE_GROUP_OFFSET, admin.CloneGroupOffset, NO_HEADER),
    Command(
        Code.VIEW_BROKER_STATS_DATA,
        admin.ViewBrokerStatsData,
        NO_HEADER,
        reply_body=json_body(BrokerStatsData),
    ),
    Command(
        Code.GET_BROKER_CONSUME_STATS,
        admin.GetBrokerConsumeStats,
        NO_HEADER,
        reply_body=json_body(BrokerConsumeStats),
    ),
    Command(Code.GET_ALL_PRODUCER_INFO, NO_HEADER, NO_HEADER, reply_body=json_body(ProducerTable)),
    # Access control
    Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, acl.UpdateAndCreateAclConfig, NO_HEADER),
    Command(Code.DELETE_ACL_CONFIG, acl.DeleteAclConfig, NO_HEADER),
    Command(Code.GET_BROKER_CLUSTER_ACL_INFO, NO_HEADER, acl.GetBrokerClusterAclInfoReply),
    Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, acl.UpdateGlobalWhiteAddrsConfig, NO_HEADER),
    Command(
        Code.GET_BROKER_CLUSTER_ACL_CONFIG, NO_HEADER, NO_HEADER, reply_body=json_body(AclConfig)
    ),
)
