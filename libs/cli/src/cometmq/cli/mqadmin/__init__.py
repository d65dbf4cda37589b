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
}
"""Module -> its commands -> what they do."""

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    name: CommandInfo(module, help_line, PANEL, is_in_family=True)
    for module, commands in FAMILIES.items()
    for name, help_line in commands.items()
}
