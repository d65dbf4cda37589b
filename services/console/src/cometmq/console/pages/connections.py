# SPDX-License-Identifier: Apache-2.0
"""Connections: producers and consumers, with their versions and brokers."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.console.login.gate import may
from cometmq.console.login.roles import Role
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.tables import Column
from cometmq.insight.model import Snapshot, Unknown, known
from cometmq.insight.rules.clients import unexpected_refusals
from cometmq.remoting.refusals import plain_remark
from cometmq.remoting.versions import version_name

_SECTION: Final = "/connections"


class Client(NamedTuple):
    """One client in one of its groups."""

    role: str
    group: str
    client_id: str
    address: str
    language: str
    version: int
    brokers: list[str]


def clients_of(snapshot: Snapshot) -> list[Client]:
    """Return all connected clients, once per group."""
    found = [
        Client("producer", it.group, it.client_id, it.address, it.language, it.version,
               list(it.brokers))
        for it in known(snapshot.producers)
    ]  # fmt: skip
    for group in known(snapshot.groups):
        found += [
            Client("consumer", group.name, it.client_id, it.address, it.language, it.version,
                   list(it.brokers))
            for it in known(group.members)
        ]  # fmt: skip
    return found


def gaps_of(snapshot: Snapshot) -> list[str]:
    """Return the reasons why clients may be missing, one line each."""
    notes = []
    if isinstance(snapshot.producers, Unknown):
        notes.append(f"producers: {snapshot.producers.reason}")
    if isinstance(snapshot.groups, Unknown):
        notes.append(f"consumers: {snapshot.groups.reason}")
    untold = [it for it in known(snapshot.groups) if isinstance(it.members, Unknown)]
    if untold:
        reason = next(it.members.reason for it in untold if isinstance(it.members, Unknown))
        notes.append(f"members of {len(untold):,} groups: {reason}")
    return notes


async def overview(view: View) -> Shown:
    snapshot = await view.snapshot()
    clients = clients_of(snapshot)
    refused = known(unexpected_refusals(snapshot))
    refusals = {it.peer: plain_remark(it.remark) or "refused" for it in refused}
    table = view.table(
        clients,
        _columns(view, refusals),
        default="group",
        search=lambda it: f"{it.group} {it.role} {it.client_id} {it.address} {it.language}",
    )
    return Shown(
        [it._asdict() for it in clients],
        "cometmq top connections",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {"table": table, "gaps": gaps_of(snapshot)},
    )


def _columns(view: View, refusals: Mapping[str, str]) -> list[Column[Client]]:
    def details(it: Client) -> str:
        is_shown = it.role == "consumer"
        return view.href("/group/member", name=it.group, client=it.client_id) if is_shown else ""

    def disconnect(it: Client) -> str:
        return view.href("/client/disconnect", client=it.client_id)

    def refusal(it: Client) -> str:
        return refusals.get(it.address.lstrip("/"), "")

    columns: list[Column[Client]] = [
        Column("group", "Group", lambda it: it.group),
        Column("role", "Role", lambda it: it.role),
        Column("client", "Client id", lambda it: it.client_id, "id", details),
    ]
    if may(view.user, Role.OPERATOR):  # before the columns that may be out of sight
        columns.append(Column("tools", "Change", lambda _: "Disconnect", link=disconnect))
    return [
        *columns,
        Column("address", "Address", lambda it: it.address.lstrip("/")),
        Column("version", "Version", lambda it: f"{it.language} {version_name(it.version)}"),
        Column("brokers", "Connected to", lambda it: it.brokers),
        Column(
            "refused", "Last refusal", refusal, "prose",
            tone=lambda it: "warn" if refusal(it) else "",
            help="what a broker refused this connection lately; see Push-back",
        ),
    ]  # fmt: skip


PAGES: Final = (Page(_SECTION, "Connections", "connections.html", overview, menu="Connections"),)
