# SPDX-License-Identifier: Apache-2.0
"""The commands of RocketMQ's mqadmin, under their own names and with their own options.

One module per family of commands. This table is all that the help page needs; a module is
imported when one of its commands is called.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.cli.lazy import CommandInfo

PANEL: Final = "As RocketMQ's mqadmin"

FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    "cometmq.cli.mqadmin.topics": {
        "updateTopic": "Create a topic, or change it.",
        "updateTopicPerm": "Change what clients may do with a topic.",
        "deleteTopic": "Delete a topic with its messages from brokers and name servers.",
    },
    "cometmq.cli.mqadmin.topic_views": {
        "topicRoute": "Show which brokers have a topic, as clients see it.",
        "topicStatus": "Show begin, end and last message of each queue of a topic.",
        "topicClusterList": "List the clusters that have a topic.",
        "topicList": "List the topics.",
    },
    "cometmq.cli.mqadmin.topic_queues": {
        "updateOrderConf": "Show, set or delete which queues an ordered topic keeps when brokers"
        " change.",
        "allocateMQ": "Show how consumers would share the queues of a topic.",
    },
    "cometmq.cli.mqadmin.brokers": {
        "updateBrokerConfig": "Change a setting of running brokers.",
        "getBrokerConfig": "Show the settings of brokers.",
        "brokerStatus": "Show what running brokers tell about themselves.",
        "brokerConsumeStats": "Show how far all groups are at a broker.",
        "producer": "Show the connected members of all producer groups of a broker.",
        "cleanExpiredCQ": "Delete queue files whose messages are gone; of all brokers without -b"
        " and -c.",
        "cleanUnusedTopic": "Delete queues of topics that are gone; of all brokers without -b and"
        " -c.",
        "deleteExpiredCommitLog": "Delete expired log files now; of all brokers without -b and -c.",
    },
    "cometmq.cli.mqadmin.clusters": {
        "clusterList": "Show every broker with its load.",
    },
    "cometmq.cli.mqadmin.namesrvs": {
        "updateKvConfig": "Set a value at every name server.",
        "deleteKvConfig": "Delete a value at every name server.",
        "wipeWritePerm": "Let nobody send to a broker: for its maintenance.",
        "addWritePerm": "Let clients send to a broker again.",
        "getNamesrvConfig": "Show the settings of every name server.",
        "updateNamesrvConfig": "Change a setting of every name server.",
    },
    "cometmq.cli.mqadmin.sending": {
        "sendMessage": "Send a message.",
        "sendMsgStatus": "Send to the topic that has a broker's name, and show what becomes of each"
        " message.",
        "checkMsgSendRT": "Send to the queues of a topic in turn, and show how long each message"
        " took.",
        "clusterRT": "Send to every broker again and again, and show how long it takes; Ctrl-C ends"
        " it.",
    },
    "cometmq.cli.mqadmin.groups": {
        "updateSubGroup": "Create a consumer group, or change it.",
        "deleteSubGroup": "Delete a consumer group.",
        "getConsumerConfig": "Show the settings of a consumer group.",
    },
    "cometmq.cli.mqadmin.consumers": {
        "consumerStatus": "Show what the members of a group say about themselves.",
        "consumer": "As consumerStatus, for all members.",
        "consumerConnection": "Show the connected members of a consumer group.",
        "producerConnection": "Show the connected members of a producer group.",
    },
    "cometmq.cli.mqadmin.progress": {
        "consumerProgress": "Show how far a group is in each queue, or how far all groups are.",
    },
    "cometmq.cli.mqadmin.offsets": {
        "resetOffsetByTime": "Have a group continue at a moment.",
        "resetOffsetByTimeOld": "Set the stored offsets of a group to a moment.",
        "skipAccumulatedMessage": "Have a group continue at the end of every queue.",
        "cloneGroupOffset": "Give a group the offsets that another has in a topic.",
        "getConsumerStatus": "Ask the connected members of a group where they are.",
    },
    "cometmq.cli.mqadmin.queries": {
        "queryMsgById": "Show messages by their ids; or have them consumed, or sent, again.",
        "queryMsgByUniqueKey": "Show a message by its unique key; or have it consumed again.",
        "queryMsgByKey": "List messages that have a key.",
        "queryMsgByOffset": "Show the message at a place of a queue.",
    },
    "cometmq.cli.mqadmin.traces": {
        "queryMsgTraceById": "Show who sent a message and who consumed it.",
    },
    "cometmq.cli.mqadmin.reading": {
        "printMsg": "Print the messages of a topic.",
        "printMsgByQueue": "Print the messages of a queue, or how many have each tag.",
        "consumeMessage": "Print the oldest messages of a topic or a queue.",
    },
    "cometmq.cli.mqadmin.places": {
        "DecodeMessageId": "Show the machine and the moment that a unique key was made of.",
        "queryCq": "Show entries of a consume queue.",
    },
    "cometmq.cli.mqadmin.monitoring": {
        "startMonitoring": "Print what groups have not consumed, and what is wrong with them.",
    },
    "cometmq.cli.mqadmin.accounts": {
        "updateAclConfig": "Create an account, or change it.",
        "deleteAclConfig": "Delete an account.",
        "updateGlobalWhiteAddr": "Replace the addresses that need no account.",
        "clusterAclConfigVersion": "Show the versions of the access control files of brokers.",
        "getAclConfig": "Show all accounts of brokers, with their secrets.",
    },
    "cometmq.cli.mqadmin.exports": {
        "exportMetadata": "Write the topics and consumer groups of users into a file.",
        "exportConfigs": "Write the settings that matter and the size of a cluster into a file.",
        "exportMetrics": "Write rates, counts and sizes of a cluster into a file.",
    },
    "cometmq.cli.mqadmin.statistics": {
        "statsAll": "Show rates and counts of all topics and their groups.",
    },
}
"""Module -> its commands -> what they do."""

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    name: CommandInfo(module, help_line, PANEL, is_in_family=True, accepts_empty=True)
    for module, commands in FAMILIES.items()
    for name, help_line in commands.items()
}

ALIASES: Final[Mapping[str, str]] = {
    "deleteaccessconfig": "deleteAclConfig",
    "getaccessconfigsubcommand": "getAclConfig",
}
"""Further names of commands, in lower case."""
