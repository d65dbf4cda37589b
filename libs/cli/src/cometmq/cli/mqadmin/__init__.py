# SPDX-License-Identifier: Apache-2.0
"""`cometmq mqadmin`: the commands of RocketMQ's mqadmin, with their original names and options.

Each family of commands has a module. The help page needs only this table; a module is
imported when one of its commands is called.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.cli.lazy import App, CommandInfo, LazyGroup

FAMILIES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "cometmq.cli.mqadmin.topics": ("topics", {
        "updateTopic": "Create or update a topic.",
        "updateTopicPerm": "Change what clients may do with a topic.",
        "deleteTopic": "Delete a topic and its messages from brokers and name servers.",
        "topicRoute": "Show the brokers of a topic as clients see them.",
        "topicStatus": "Show the offsets and last message of each queue of a topic.",
        "topicClusterList": "List the clusters that have a topic.",
        "topicList": "List the topics.",
        "updateOrderConf": "Get, put or delete the queues that an ordered topic keeps when"
        " brokers change.",
        "allocateMQ": "Show how consumers would share the queues of a topic.",
    }),
    "cometmq.cli.mqadmin.brokers": ("servers", {
        "updateBrokerConfig": "Change a setting of running brokers.",
        "getBrokerConfig": "Show the settings of brokers.",
        "brokerStatus": "Show the run-time statistics of brokers.",
        "brokerConsumeStats": "Show the progress of all groups on a broker.",
        "producer": "Show the connected members of all producer groups of a broker.",
        "cleanExpiredCQ": "Delete queue files whose messages are gone; by default on all brokers.",
        "cleanUnusedTopic": "Delete queues of deleted topics; by default on all brokers.",
        "deleteExpiredCommitLog": "Delete expired log files now; by default on all brokers.",
        "clusterList": "Show every broker with its load.",
    }),
    "cometmq.cli.mqadmin.namesrvs": ("servers", {
        "updateKvConfig": "Set a value on every name server.",
        "deleteKvConfig": "Delete a value from every name server.",
        "wipeWritePerm": "Stop producers from sending to a broker, for maintenance.",
        "addWritePerm": "Allow sends to a broker again.",
        "getNamesrvConfig": "Show the settings of every name server.",
        "updateNamesrvConfig": "Change a setting of every name server.",
    }),
    "cometmq.cli.mqadmin.sending": ("messages", {
        "sendMessage": "Send a message.",
        "sendMsgStatus": "Send to the topic named after the broker and show the result of each"
        " message.",
        "checkMsgSendRT": "Send to the queues of a topic in turn and show the response times.",
        "clusterRT": "Send to every broker in rounds until Ctrl-C and show the response times.",
    }),
    "cometmq.cli.mqadmin.group_settings": ("groups", {
        "updateSubGroup": "Create or update a consumer group.",
        "deleteSubGroup": "Delete a consumer group.",
        "getConsumerConfig": "Show the settings of a consumer group.",
    }),
    "cometmq.cli.mqadmin.consumers": ("groups", {
        "consumerStatus": "Show the running state of the members of a group.",
        "consumer": "Show the running state of all members of a group.",
        "consumerConnection": "Show the connected members of a consumer group and their"
        " subscriptions.",
        "producerConnection": "Show the connected members of a producer group.",
    }),
    "cometmq.cli.mqadmin.progress": ("groups", {
        "consumerProgress": "Show the progress of a group by queue, or of all groups.",
        "resetOffsetByTime": "Move a group to a point in time.",
        "resetOffsetByTimeOld": "Move the committed offsets of a group to a point in time.",
        "skipAccumulatedMessage": "Move a group to the end of every queue.",
        "cloneGroupOffset": "Copy the offsets of a group in a topic to another group.",
        "getConsumerStatus": "Show the current offsets of the connected members of a group.",
    }),
    "cometmq.cli.mqadmin.queries": ("messages", {
        "queryMsgById": "Show, redeliver or resend messages by id.",
        "queryMsgByUniqueKey": "Show or redeliver a message by its unique key.",
        "queryMsgByKey": "List the messages with a given key.",
        "queryMsgByOffset": "Show the message at an offset of a queue.",
        "queryMsgTraceById": "Show the producer and the consumers of a message.",
    }),
    "cometmq.cli.mqadmin.reading": ("messages", {
        "printMsg": "Print the messages of a topic.",
        "printMsgByQueue": "Print the messages of a queue, or count them by tag.",
        "consumeMessage": "Print the oldest messages of a topic or a queue.",
        "DecodeMessageId": "Decode the machine and time in a unique key.",
        "queryCq": "Show entries of a consume queue.",
    }),
    "cometmq.cli.mqadmin.monitoring": ("others", {
        "startMonitoring": "Watch all groups for lag, other problems and offset corrections.",
    }),
    "cometmq.cli.mqadmin.accounts": ("others", {
        "updateAclConfig": "Create or update an account.",
        "deleteAclConfig": "Delete an account.",
        "updateGlobalWhiteAddr": "Replace the addresses exempt from access control.",
        "clusterAclConfigVersion": "Show the versions of the access control files of brokers.",
        "getAclConfig": "Show all accounts configured on the brokers, including secret keys.",
    }),
    "cometmq.cli.mqadmin.exports": ("others", {
        "exportMetadata": "Export topics and consumer groups to a file.",
        "exportConfigs": "Export the important settings and the size of a cluster to a file.",
        "exportMetrics": "Export rates, counts and sizes of a cluster to a file.",
        "statsAll": "Show rates and counts of all topics and their groups.",
    }),
}  # fmt: skip
"""The area of each module on the help page, and its commands with their help lines."""

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    name: CommandInfo(
        module, line, f"mqadmin, {area}", is_in_family=True,
        takes_full_names=True, accepts_empty=True,
    )
    for module, (area, lines) in FAMILIES.items()
    for name, line in lines.items()
}  # fmt: skip

ALIASES: Final[Mapping[str, str]] = {
    "deleteaccessconfig": "deleteAclConfig",
    "getaccessconfigsubcommand": "getAclConfig",
}
"""Other names of commands, in lower case."""


class MqadminCommands(LazyGroup):
    """The commands of mqadmin."""

    table = COMMANDS
    aliases = ALIASES
    panels = tuple(dict.fromkeys(it.panel for it in COMMANDS.values()))


app = App(cls=MqadminCommands)


@app.callback()
def mqadmin() -> None:
    """Run one of RocketMQ's mqadmin commands; the word `mqadmin` may be left out.

    Names, options and output match mqadmin's, and no command asks for confirmation, so existing
    scripts keep working. Every command also takes --json.
    """
