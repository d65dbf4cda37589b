# SPDX-License-Identifier: Apache-2.0
"""Suggests commands for unknown names that users of other tools may try.

Similar spellings are suggested without this table.
"""

from collections.abc import Mapping
from typing import Final

_ACCOUNTS: Final = (
    "account", "getAclConfig", "updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr",
)  # fmt: skip
_CONFIG: Final = (
    "config show",
    "config diff",
    "config check",
    "getBrokerConfig",
    "updateBrokerConfig",
    "getNamesrvConfig",
    "updateNamesrvConfig",
)
_MESSAGES: Final = (
    "produce",
    "consume",
    "message show",
    "message find",
    "printMsg",
)
_OFFSETS: Final = ("group describe", "group reset", "group clone")
_TRACES: Final = ("message trace", "queryMsgTraceById")

SUGGESTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("acl", "accounts", "user", "users", "permission"), _ACCOUNTS),
    **dict.fromkeys(("configs", "settings", "setting"), _CONFIG),
    **dict.fromkeys(("messages", "msg", "browse", "query", "find"), _MESSAGES),
    **dict.fromkeys(("offset", "offsets", "reset"), _OFFSETS),
    **dict.fromkeys(("trace", "traces"), _TRACES),
    **dict.fromkeys(("delay", "delayed", "schedule", "scheduled"), ("message delayed",)),
    **dict.fromkeys(("rpc", "call", "ask", "responder", "service"), ("request", "reply")),
    **dict.fromkeys(("brokers", "status", "nodes"), ("cluster", "brokerStatus")),
    **dict.fromkeys(("queue", "queues"), ("topic describe", "queryCq")),
    **dict.fromkeys(("route", "routes"), ("topic route",)),
    **dict.fromkeys(("stats", "statistics"), ("statsAll", "cluster", "lag")),
    **dict.fromkeys(("consumers", "subscription", "subscriptions"), ("group", "lag")),
    **dict.fromkeys(("producers",), ("producerConnection", "producer")),
    **dict.fromkeys(("export",), ("backup", "exportMetadata", "exportConfigs", "dlq export")),
    **dict.fromkeys(("import", "snapshot"), ("restore", "backup")),
    **dict.fromkeys(("transaction", "transactions"), ("txn",)),
    **dict.fromkeys(("dead-letter", "dead-letters", "deadletter"), ("dlq",)),
    **dict.fromkeys(("kv", "kvconfig"), ("updateKvConfig", "deleteKvConfig")),
    **dict.fromkeys(("nameserver", "namesrvs", "nameservers"), ("namesrv", "getNamesrvConfig")),
    **dict.fromkeys(("send", "publish", "pub", "put"), ("produce",)),
    **dict.fromkeys(("receive", "subscribe", "sub", "pull", "tail"), ("consume",)),
    **dict.fromkeys(("start", "run", "server", "serve"), ("standalone", "namesrv", "broker")),
    **dict.fromkeys(("failover", "switchover"), ("ha status", "ha switchover")),
    **dict.fromkeys(("verify", "inspect", "dump"), ("store",)),
    **dict.fromkeys(("contexts", "profile", "profiles", "use"), ("context",)),
    **dict.fromkeys(("error", "errors", "code", "codes", "event"), ("explain",)),
    **dict.fromkeys(("grafana", "prometheus", "keda", "systemd"), ("generate",)),
}
"""The commands to suggest, by word in lower case."""
