# SPDX-License-Identifier: Apache-2.0
"""RequestCode: a table of every request in the protocol, one row per code, grouped by the program
that answers it.

Handler tables, rights, the gate of a broker group, the second port, documentation
(docs/reference/commands.md, codes.md) and fuzz tests are derived from this table. A server answers
a code without a row with REQUEST_CODE_NOT_SUPPORTED. CometMQ's own codes begin at 30001.
"""

from collections.abc import Mapping
from enum import IntEnum, unique
from types import ModuleType
from typing import Any, Final, Self

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
from cometmq.remoting.bodies.settings import BrokerSettingsList
from cometmq.remoting.bodies.stats import (
    BrokerConsumeStats,
    BrokerStatsData,
    ConsumeQueueEntries,
    ConsumeStats,
    ConsumeTimeSpans,
    TopicStats,
)
from cometmq.remoting.bodies.topic_config import (
    CreateTopicList,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.commands import (
    acl,
    admin,
    callbacks,
    clients,
    namesrv,
    offsets,
    pull,
    queries,
    request_reply,
    send,
    topics,
    transactions,
)
from cometmq.remoting.commands.table import (
    ADMIN,
    ADMIN_OF_5,
    HEARTBEAT,
    LOCKS,
    NO_HEADER,
    PUBLIC,
    REPLY,
    SEND,
    SIGNED,
    STORED,
    Command,
    Kind,
    NoHeader,
    Service,
    consume,
    to_broker,
    to_client,
    to_namesrv,
)

__all__ = ["COMMANDS", "NO_HEADER", "Command", "NoHeader", "RequestCode", "handlers_of"]

_BOTH: Final = (Service.BROKER, Service.CLIENT)


@unique
class RequestCode(IntEnum):
    """The operation that a request asks for; `command` is None if no program serves it."""

    command: Command | None

    def __new__(cls, row: Command | int) -> Self:
        """Make a member from a row, or from the bare number of a code that no program serves."""
        self = int.__new__(cls, row.code if isinstance(row, Command) else row)
        self._value_ = int(self)
        self.command = row if isinstance(row, Command) else None
        return self

    @property
    def is_own(self) -> bool:
        """Whether the code is CometMQ's, not RocketMQ's."""
        return 30_000 < self < 40_000

    # fmt: off
    # The broker: sending
    SEND_MESSAGE = to_broker(10, SEND, Kind.PUT, send.SendMessage, send.SendMessageReply,
        body=BYTES, notes_detour=True)
    SEND_MESSAGE_V2 = to_broker(310, SEND, Kind.PUT, send.SendMessageV2, send.SendMessageReply,
        body=BYTES, handler="send_message", notes_detour=True)
    SEND_BATCH_MESSAGE = to_broker(320, SEND, Kind.PUT, send.SendMessageV2, send.SendMessageReply,
        body=BATCH, notes_detour=True)
    CONSUMER_SEND_MSG_BACK = to_broker(36, consume("group"), Kind.PUT, send.ConsumerSendMsgBack,
        notes_detour=True)
    SEND_REPLY_MESSAGE = to_broker(324, REPLY, Kind.ALWAYS, request_reply.SendReplyMessage,
        request_reply.SendReplyMessageReply, body=BYTES)
    SEND_REPLY_MESSAGE_V2 = to_broker(325, REPLY, Kind.ALWAYS, request_reply.SendReplyMessageV2,
        request_reply.SendReplyMessageReply, body=BYTES, handler="send_reply_message")

    RECALL_MESSAGE = to_broker(370, SEND, Kind.CHANGE, send.RecallMessage, send.RecallMessageReply)

    # The broker: pulling and queries
    PULL_MESSAGE = to_broker(11, consume("topic", "consumer_group"), Kind.READ, pull.PullMessage,
        pull.PullMessageReply, reply_body=RECORDS, has_second_port=False, notes_detour=True)
    LITE_PULL_MESSAGE = to_broker(361, consume("topic", "consumer_group"), Kind.READ,
        pull.PullMessage, pull.PullMessageReply, reply_body=RECORDS, handler="pull_message",
        has_second_port=False, notes_detour=True)
    QUERY_MESSAGE = to_broker(12, consume("topic"), Kind.ALWAYS, queries.QueryMessage,
        queries.QueryMessageReply, reply_body=RECORDS)
    VIEW_MESSAGE_BY_ID = to_broker(33, SIGNED, Kind.ALWAYS, queries.ViewMessageById,
        reply_body=RECORDS)
    QUERY_CONSUME_QUEUE = to_broker(321, SIGNED, Kind.ALWAYS, queries.QueryConsumeQueue,
        reply_body=json_body(ConsumeQueueEntries))

    # The broker: offsets
    QUERY_CONSUMER_OFFSET = to_broker(14, SIGNED, Kind.READ, offsets.QueryConsumerOffset,
        offsets.QueryConsumerOffsetReply)
    UPDATE_CONSUMER_OFFSET = to_broker(15, consume("consumer_group", "topic"), Kind.COMMIT,
        offsets.UpdateConsumerOffset, oneway=True)
    SEARCH_OFFSET_BY_TIMESTAMP = to_broker(29, SIGNED, Kind.READ, offsets.SearchOffsetByTimestamp,
        offsets.SearchOffsetByTimestampReply)
    GET_MAX_OFFSET = to_broker(30, SIGNED, Kind.READ, offsets.GetMaxOffset,
        offsets.GetMaxOffsetReply)
    GET_MIN_OFFSET = to_broker(31, SIGNED, Kind.ALWAYS, offsets.GetMinOffset,
        offsets.GetMinOffsetReply)
    GET_EARLIEST_MSG_STORETIME = to_broker(32, SIGNED, Kind.ALWAYS,
        offsets.GetEarliestMsgStoretime, offsets.GetEarliestMsgStoretimeReply)
    GET_ALL_CONSUMER_OFFSET = to_broker(43, SIGNED, Kind.ALWAYS,
        reply_body=json_body(ConsumerOffsetTable))
    GET_ALL_DELAY_OFFSET = to_broker(45, SIGNED, Kind.ALWAYS,
        reply_body=json_body(DelayOffsetTable))

    # The broker: clients
    HEART_BEAT = to_broker(34, HEARTBEAT, Kind.ALWAYS, body=json_body(Heartbeat))
    UNREGISTER_CLIENT = to_broker(35, consume("consumer_group"), Kind.ALWAYS,
        clients.UnregisterClient)
    DISCONNECT_CLIENT = to_broker(30004, ADMIN, Kind.ALWAYS, clients.DisconnectClient,
        clients.DisconnectClientReply)
    GET_CONSUMER_LIST_BY_GROUP = to_broker(38, consume("consumer_group"), Kind.ALWAYS,
        clients.GetConsumerListByGroup, reply_body=json_body(ConsumerIdList))
    CHECK_CLIENT_CONFIG = to_broker(46, SIGNED, Kind.ALWAYS, body=json_body(ClientConfigCheck))
    LOCK_BATCH_MQ = to_broker(41, LOCKS, Kind.UNLOGGED, body=json_body(LockBatch),
        reply_body=json_body(LockBatchReply), notes_detour=True, is_small=True)
    UNLOCK_BATCH_MQ = to_broker(42, LOCKS, Kind.UNLOGGED, body=json_body(LockBatch))
    # Tools send these two to a broker, which sends them to the client
    GET_CONSUMER_RUNNING_INFO = to_broker(307, consume("consumer_group", is_of_5=True),
        Kind.ALWAYS, callbacks.GetConsumerRunningInfo, reply_body=json_body(ConsumerRunningInfo),
        services=_BOTH)
    CONSUME_MESSAGE_DIRECTLY = to_broker(309, ADMIN, Kind.ALWAYS,
        callbacks.ConsumeMessageDirectly, body=RECORDS,
        reply_body=json_body(ConsumeMessageDirectlyResult), services=_BOTH)

    # The broker: transactions
    END_TRANSACTION = to_broker(37, STORED, Kind.PUT, transactions.EndTransaction, oneway=True,
        notes_detour=True)
    RESUME_CHECK_HALF_MESSAGE = to_broker(323, ADMIN, Kind.PUT, transactions.ResumeCheckHalfMessage)
    ASK_TRANSACTION_STATE = to_broker(30001, ADMIN, Kind.ALWAYS, transactions.AskTransactionState,
        transactions.AskTransactionStateReply)
    SET_TRANSACTION_ASIDE = to_broker(30002, ADMIN, Kind.PUT, transactions.SetTransactionAside)

    # The broker: topics and groups
    UPDATE_AND_CREATE_TOPIC = to_broker(17, ADMIN, Kind.CHANGE, topics.UpdateAndCreateTopic)
    UPDATE_AND_CREATE_TOPIC_LIST = to_broker(18, ADMIN, Kind.CHANGE,
        body=json_body(CreateTopicList))
    GET_ALL_TOPIC_CONFIG = to_broker(21, SIGNED, Kind.ALWAYS,
        reply_body=json_body(TopicConfigTable))
    GET_TOPIC_STATS_INFO = to_broker(202, SIGNED, Kind.READ, topics.GetTopicStatsInfo,
        reply_body=json_body(TopicStats), may_miss=True)
    DELETE_TOPIC_IN_BROKER = to_broker(215, ADMIN, Kind.CHANGE, topics.DeleteTopicInBroker)
    TRIM_QUEUE = to_broker(30005, ADMIN, Kind.CHANGE, topics.TrimQueue, topics.TrimQueueReply)
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = to_broker(305, SIGNED, Kind.ALWAYS,
        reply_body=json_body(TopicList), handler="get_system_topic_list")
    GET_TOPIC_CONFIG = to_broker(351, SIGNED, Kind.ALWAYS, topics.GetTopicConfig,
        reply_body=json_body(TopicConfig))
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = to_broker(200, ADMIN, Kind.CHANGE,
        body=json_body(SubscriptionGroupConfig))
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = to_broker(225, ADMIN, Kind.CHANGE,
        body=json_body(SubscriptionGroupList))
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = to_broker(201, SIGNED, Kind.ALWAYS,
        reply_body=json_body(SubscriptionGroupTable))
    DELETE_SUBSCRIPTIONGROUP = to_broker(207, ADMIN, Kind.CHANGE, topics.DeleteSubscriptiongroup)
    GET_SUBSCRIPTIONGROUP_CONFIG = to_broker(352, SIGNED, Kind.ALWAYS,
        topics.GetSubscriptiongroupConfig, reply_body=json_body(SubscriptionGroupConfig))

    # The broker: administration
    UPDATE_BROKER_CONFIG = to_broker(25, ADMIN, Kind.ALWAYS, body=PROPERTIES_TEXT)
    GET_BROKER_CONFIG = to_broker(26, SIGNED, Kind.ALWAYS, NO_HEADER, admin.GetBrokerConfigReply,
        reply_body=PROPERTIES_TEXT)
    GET_BROKER_SETTINGS = to_broker(30006, SIGNED, Kind.ALWAYS,
        reply_body=json_body(BrokerSettingsList))
    GET_BROKER_RUNTIME_INFO = to_broker(28, SIGNED, Kind.ALWAYS, reply_body=json_body(KVTable))
    GET_BROKER_OVERVIEW = to_broker(30003, SIGNED, Kind.READ, reply_body=json_body(BrokerOverview))
    GET_CONSUMER_CONNECTION_LIST = to_broker(203, SIGNED, Kind.ALWAYS,
        admin.GetConsumerConnectionList, reply_body=json_body(ConsumerConnections))
    GET_PRODUCER_CONNECTION_LIST = to_broker(204, SIGNED, Kind.ALWAYS,
        admin.GetProducerConnectionList, reply_body=json_body(ProducerConnections))
    GET_CONSUME_STATS = to_broker(208, SIGNED, Kind.READ, admin.GetConsumeStats,
        reply_body=json_body(ConsumeStats), may_miss=True)
    INVOKE_BROKER_TO_RESET_OFFSET = to_broker(222, ADMIN, Kind.CHANGE,
        admin.InvokeBrokerToResetOffset, reply_body=json_body(QueueOffsetTable))
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = to_broker(223, consume("group", is_of_5=True),
        Kind.ALWAYS, admin.InvokeBrokerToGetConsumerStatus, reply_body=json_body(ConsumerStatus))
    QUERY_TOPIC_CONSUME_BY_WHO = to_broker(300, SIGNED, Kind.ALWAYS, admin.QueryTopicConsumeByWho,
        reply_body=json_body(GroupList))
    REGISTER_FILTER_SERVER = to_broker(301, ADMIN_OF_5, Kind.ALWAYS, admin.RegisterFilterServer,
        admin.RegisterFilterServerReply)
    QUERY_CONSUME_TIME_SPAN = to_broker(303, SIGNED, Kind.ALWAYS, admin.QueryConsumeTimeSpan,
        reply_body=json_body(ConsumeTimeSpans))
    CLEAN_EXPIRED_CONSUMEQUEUE = to_broker(306, ADMIN, Kind.ALWAYS,
        handler="clean_expired_consume_queue")
    CLEAN_UNUSED_TOPIC = to_broker(316, ADMIN, Kind.ALWAYS)
    DELETE_EXPIRED_COMMITLOG = to_broker(329, ADMIN, Kind.ALWAYS)
    QUERY_CORRECTION_OFFSET = to_broker(308, SIGNED, Kind.ALWAYS, admin.QueryCorrectionOffset,
        reply_body=json_body(CorrectionOffsets))
    CLONE_GROUP_OFFSET = to_broker(314, ADMIN, Kind.CHANGE, admin.CloneGroupOffset)
    VIEW_BROKER_STATS_DATA = to_broker(315, SIGNED, Kind.ALWAYS, admin.ViewBrokerStatsData,
        reply_body=json_body(BrokerStatsData), may_miss=True)
    GET_BROKER_CONSUME_STATS = to_broker(317, SIGNED, Kind.ALWAYS, admin.GetBrokerConsumeStats,
        reply_body=json_body(BrokerConsumeStats))
    GET_ALL_PRODUCER_INFO = to_broker(328, SIGNED, Kind.ALWAYS,
        reply_body=json_body(ProducerTable))

    # The broker: accounts
    UPDATE_AND_CREATE_ACL_CONFIG = to_broker(50, ADMIN, Kind.ALWAYS, acl.UpdateAndCreateAclConfig)
    DELETE_ACL_CONFIG = to_broker(51, ADMIN, Kind.ALWAYS, acl.DeleteAclConfig)
    GET_BROKER_CLUSTER_ACL_INFO = to_broker(52, SIGNED, Kind.ALWAYS, NO_HEADER,
        acl.GetBrokerClusterAclInfoReply)
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = to_broker(53, ADMIN, Kind.ALWAYS,
        acl.UpdateGlobalWhiteAddrsConfig)
    GET_BROKER_CLUSTER_ACL_CONFIG = to_broker(54, ADMIN, Kind.ALWAYS,
        reply_body=json_body(AclConfig))

    # The client
    CHECK_TRANSACTION_STATE = to_client(39, transactions.CheckTransactionState, body=RECORDS,
        oneway=True)
    NOTIFY_CONSUMER_IDS_CHANGED = to_client(40, callbacks.NotifyConsumerIdsChanged, oneway=True)
    RESET_CONSUMER_CLIENT_OFFSET = to_client(220, callbacks.ResetConsumerClientOffset,
        body=json_body(QueueOffsetTable), oneway=True)
    GET_CONSUMER_STATUS_FROM_CLIENT = to_client(221, callbacks.GetConsumerStatusFromClient,
        reply_body=json_body(ConsumerStatus))
    PUSH_REPLY_MESSAGE_TO_CLIENT = to_client(326, request_reply.PushReplyMessageToClient,
        body=BYTES)

    # The name server
    PUT_KV_CONFIG = to_namesrv(100, ADMIN, namesrv.PutKvConfig)
    GET_KV_CONFIG = to_namesrv(101, PUBLIC, namesrv.GetKvConfig, namesrv.GetKvConfigReply)
    DELETE_KV_CONFIG = to_namesrv(102, ADMIN, namesrv.DeleteKvConfig)
    REGISTER_BROKER = to_namesrv(103, ADMIN, namesrv.RegisterBroker, namesrv.RegisterBrokerReply,
        body=REGISTER, reply_body=json_body(KVTable))
    UNREGISTER_BROKER = to_namesrv(104, ADMIN, namesrv.UnregisterBroker)
    GET_ROUTEINFO_BY_TOPIC = to_namesrv(105, PUBLIC, namesrv.GetRouteinfoByTopic,
        reply_body=json_body(TopicRoute))
    GET_BROKER_CLUSTER_INFO = to_namesrv(106, PUBLIC, reply_body=json_body(ClusterInfo))
    WIPE_WRITE_PERM_OF_BROKER = to_namesrv(205, ADMIN, namesrv.WipeWritePermOfBroker,
        namesrv.WipeWritePermOfBrokerReply)
    ADD_WRITE_PERM_OF_BROKER = to_namesrv(327, ADMIN, namesrv.AddWritePermOfBroker,
        namesrv.AddWritePermOfBrokerReply)
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = to_namesrv(206, PUBLIC, reply_body=json_body(TopicList))
    DELETE_TOPIC_IN_NAMESRV = to_namesrv(216, ADMIN, namesrv.DeleteTopicInNamesrv)
    GET_KVLIST_BY_NAMESPACE = to_namesrv(219, PUBLIC, namesrv.GetKvlistByNamespace,
        reply_body=json_body(KVTable))
    GET_TOPICS_BY_CLUSTER = to_namesrv(224, PUBLIC, namesrv.GetTopicsByCluster,
        reply_body=json_body(TopicList))
    GET_SYSTEM_TOPIC_LIST_FROM_NS = to_namesrv(304, PUBLIC, reply_body=json_body(TopicList))
    GET_UNIT_TOPIC_LIST = to_namesrv(311, PUBLIC, reply_body=json_body(TopicList))
    GET_HAS_UNIT_SUB_TOPIC_LIST = to_namesrv(312, PUBLIC, reply_body=json_body(TopicList))
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = to_namesrv(313, PUBLIC, reply_body=json_body(TopicList))
    UPDATE_NAMESRV_CONFIG = to_namesrv(318, ADMIN, body=PROPERTIES_TEXT)
    GET_NAMESRV_CONFIG = to_namesrv(319, ADMIN, reply_body=PROPERTIES_TEXT)
    # An account is needed, because an equal version keeps a broker in the routes
    QUERY_DATA_VERSION = to_namesrv(322, ADMIN, namesrv.QueryDataVersion,
        namesrv.QueryDataVersionReply, body=json_body(DataVersion),
        reply_body=json_body(DataVersion))

    # Not served: RocketMQ 4.9.4 has only the names of 13, 22, 23, 27, 209 to 214 and 302; the rest
    # belongs to RocketMQ 5 or to its controllers.
    QUERY_BROKER_OFFSET = 13
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    TRIGGER_DELETE_FILES = 27
    GET_CLIENT_CONFIG = 47
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    REGISTER_TOPIC_IN_NAMESRV = 217
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056
    BATCH_ACK_MESSAGE = 200151

    # fmt: on


COMMANDS: Final[Mapping[int, Command]] = {
    int(code): code.command for code in RequestCode if code.command is not None
}


def handlers_of(service: Service, *modules: ModuleType) -> dict[int, Any]:
    """Return the handler of each code that a service answers; see `Command.handler`.

    Raise LookupError unless exactly one of the modules defines each handler.
    """
    found: dict[int, Any] = {}
    for code in RequestCode:
        if code.command is None or service not in code.command.services:
            continue
        name = code.command.handler or code.name.lower()
        owners = [it for it in modules if _defines(it, name)]
        if len(owners) != 1:
            raise LookupError(
                f"{code.name} needs one function {name}, and {len(owners)} of the modules with "
                f"handlers of the {service.value} define it"
            )
        found[code] = getattr(owners[0], name)
    return found


def _defines(module: ModuleType, name: str) -> bool:
    return getattr(vars(module).get(name), "__module__", None) == module.__name__
