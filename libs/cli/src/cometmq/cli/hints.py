# SPDX-License-Identifier: Apache-2.0
"""Suggestions: completions for shells, and commands for names that users of other tools may try."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from cometmq.cli.access import NAMESRV_VARIABLE, resolved_access

TIMEOUT_S: Final = 1.0
NAMES_MAX: Final = 200
TOPICS: Final = frozenset({"topic", "target"})
PLAIN: Final = re.compile(r"[%a-zA-Z0-9_][%a-zA-Z0-9_-]*")
"""Names that a shell and this program read as one argument; peers choose others, too."""
GROUPS: Final = frozenset({"group", "source", "destination"})


def complete_names(command: Any) -> None:
    """Make a command and its subcommands complete the topics and groups that they take."""
    for param in command.params:
        if param.name in TOPICS | GROUPS and getattr(param, "_custom_shell_complete", 0) is None:
            param._custom_shell_complete = _names  # noqa: SLF001  # typer has no later way
    for child in getattr(command, "commands", {}).values():
        complete_names(child)


def _names(ctx: Any, param: Any, incomplete: str) -> list[Any]:
    completion = import_module("typer._click.shell_completion")
    is_topic = param.name in TOPICS
    names = _asked(ctx, is_topic=is_topic)
    found = [it for it in names if it.startswith(incomplete) and PLAIN.fullmatch(it)]
    return [completion.CompletionItem(it) for it in found[:NAMES_MAX]]


def _asked(ctx: Any, *, is_topic: bool) -> Sequence[str]:
    """Return the names that the cluster has; none if it does not answer in time."""
    import os  # noqa: PLC0415  # only a shell that completes needs what follows
    from asyncio import run, timeout  # noqa: PLC0415

    from cometmq.cli.connecting import DEFAULT_NAMESRV, with_access  # noqa: PLC0415
    from cometmq.client import ClientOptions  # noqa: PLC0415
    from cometmq.client.admin import AdminClient  # noqa: PLC0415
    from cometmq.insight.members import is_ours  # noqa: PLC0415
    from cometmq.remoting.errors import CometError  # noqa: PLC0415
    from cometmq.remoting.log import NO_LOG  # noqa: PLC0415
    from cometmq.remoting.names import is_system_topic  # noqa: PLC0415

    given = next((at.params["namesrv"] for at in _contexts(ctx) if at.params.get("namesrv")), "")

    async def ask() -> Sequence[str]:
        access = resolved_access()
        namesrv = given or os.getenv(NAMESRV_VARIABLE) or access.context_namesrv or DEFAULT_NAMESRV
        options = with_access(ClientOptions())
        async with timeout(TIMEOUT_S), AdminClient(namesrv, options=options, log=NO_LOG) as admin:
            if is_topic:
                return sorted(it for it in await admin.topics() if not is_system_topic(it))
            return sorted(it for it in await admin.groups() if is_ours(it))

    try:
        return run(ask())
    except (CometError, TimeoutError, OSError):
        return ()


def _contexts(ctx: Any) -> Sequence[Any]:
    found = []
    while ctx is not None:
        found.append(ctx)
        ctx = ctx.parent
    return found


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
_MESSAGES: Final = ("produce", "consume", "message show", "message find", "printMsg")
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
