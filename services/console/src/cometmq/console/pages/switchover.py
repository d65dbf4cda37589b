# SPDX-License-Identifier: Apache-2.0
"""Switches a broker group over, as `cometmq ha switchover` does, after showing the consequences."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.admin import AdminClient
from cometmq.console.login.accounts import check_admin
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import View
from cometmq.console.web.problems import missing
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.model import Broker, BrokerState, Snapshot
from cometmq.insight.words import command, sized
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.integers import whole
from cometmq.runtime.files import at_home
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls

if TYPE_CHECKING:
    from cometmq.elector.open_group import OpenGroup
    from cometmq.elector.settings import ElectorSettings
    from cometmq.elector.switchover import Planned

PACKAGE: Final = "cometmq-console[ha]"
LEAST: Final = "the one that lacks least"


def groups_of(files: str) -> "dict[str, tuple[str, ElectorSettings]]":
    """Return the files of electors and their settings by group; raise SettingsError."""
    paths = [it.strip() for it in files.split(";") if it.strip()]
    if not paths:
        return {}
    try:
        from cometmq.elector.plan import plan_of  # noqa: PLC0415  # an optional package
        from cometmq.elector.settings import ElectorSettings  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f"electorConfig needs the package {PACKAGE}") from error
    found = {}
    for path in paths:
        file = Path(at_home(path, f"electorConfig={path}"))
        settings = load(ElectorSettings, prefix=PROGRAMS["elector"].prefix, file=file).value
        plan_of(settings)
        found[settings.broker_name] = (path, settings)
    return found


def why_not(view: View, name: str, snapshot: Snapshot) -> str:
    """Return why the console cannot switch a broker group over; empty if it can."""
    master = snapshot.broker(name)
    if master is None or not isinstance(master.state, BrokerState):
        return f"no master of {name} answers: an elector replaces it, if the group has one"
    copies = master.state.figures.copies
    if copies is None:
        return (
            f"{name} has fixed roles, as in RocketMQ 4.9: none of its copies can become the master"
        )
    if _is_electorless(snapshot, name):
        return (
            f"no elector looks after {name}: nobody would replace a next master that fails; start"
            " one (cometmq elector)"
        )
    if len(copies.in_sync) < 2:
        return f"no other copy of {name} is in sync: wait until one has caught up"
    if not view.desk.settings.elector_config:
        return (
            "the console does not know the record of the group: set electorConfig to the settings"
            " file of its elector, or use cometmq ha switchover (in Kubernetes, cometmq k8s"
            " switchover)"
        )
    try:
        known = groups_of(view.desk.settings.elector_config)
    except SettingsError as error:
        return str(error)
    if name not in known:
        return f"electorConfig describes {', '.join(sorted(known))}, not {name}"
    return ""


def _is_electorless(snapshot: Snapshot, name: str) -> bool:
    return any(
        isinstance(it.state, BrokerState) and it.state.figures.is_elector_missing
        for it in snapshot.brokers
        if it.name == name
    )


async def prepare(view: View) -> Form:
    name, to = view.needed("name"), view.text("to")
    number = view.number("to", 0) if to else None
    snapshot = await view.snapshot()
    members = [it for it in snapshot.brokers if it.name == name]
    if not members:
        raise missing(f"there is no broker {name}")
    refusal = why_not(view, name, snapshot)
    file, plan = "elector.conf", None
    if not refusal:
        file = groups_of(view.desk.settings.elector_config)[name][0]
        try:
            async with _opened(view, name) as group:
                plan = await _planned(group, number)
        except CometError as error:
            refusal = str(error)
    shown = command("ha switchover", options=("-c", file, *(("--to", str(to)) if to else ())))
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    if plan is not None:
        before = {"master": plan.master, "epoch": plan.record.epoch, "in sync": plan.in_sync}
        after = {"master": plan.order.successor, "epoch": plan.record.epoch + 1,
                 "in sync": plan.in_sync}  # fmt: skip

    async def perform(admin: AdminClient) -> Done:
        from cometmq.elector.switchover import carry_out  # noqa: PLC0415  # an optional package

        if view.session is not None and view.session.credentials is not None:
            await check_admin(admin, name)  # the order itself bears the elector's key
        async with _opened(view, name) as group:
            record, took_ms = await carry_out(group, await _planned(group, number))
        return Done(
            f"Broker {record.holder.ordinal} is the master of {name} now, in epoch {record.epoch};"
            f" it was open after {took_ms:,} ms."
        )

    fields = [
        Field("name", "Group", "hidden", name),
        Field("to", "Next master", "select", to, [("", LEAST), *_choices(members, plan)]),
    ]
    return Form(
        fields,
        Plan(
            what=f"Switch {name} over" if plan is None else
            f"Make broker {plan.order.successor} the master of {name}",
            subject=name,
            before=before,
            after=after,
            consequences=[] if plan is None else _consequences(plan, members),
            command=shown,
            perform=perform,
            leads_to=view.href("/broker", name=name),
            refusal=refusal,
        ),
    )  # fmt: skip


def _choices(members: list[Broker], plan: "Planned | None") -> list[tuple[str, str]]:
    """Return the copies in sync as choices, with their addresses, because name servers list them
    under other ids.
    """
    states = [it.state for it in members if it.is_master and isinstance(it.state, BrokerState)]
    copies = states[0].figures.copies if states else None
    known = states[0].member_id if states else None
    master = known if plan is None else plan.master
    places = {
        it.state.member_id: f" ({it.address})"
        for it in members
        if isinstance(it.state, BrokerState)
    }
    return [
        (str(it), f"broker {it}{places.get(it, '')}")
        for it in (copies.in_sync if copies else ())
        if it != master
    ]


def _consequences(plan: "Planned", members: list[Broker]) -> list[Consequence]:
    ids = ", ".join(map(str, plan.in_sync))
    lag = f"lacks {sized(plan.lag_bytes)}" if plan.lag_bytes else "lacks nothing"
    settings = [it.state.settings for it in members if isinstance(it.state, BrokerState)]
    limit = next((it["switchoverTimeoutMills"] for it in settings
                  if it and "switchoverTimeoutMills" in it), "")  # fmt: skip
    limit_ms = whole(limit)
    most = "" if limit_ms is None else f", and gives up after {limit_ms:,} ms"
    return [
        Consequence(f"In sync are the brokers {ids}; broker {plan.order.successor} {lag}.", "good"),
        Consequence(
            f"Broker {plan.master} holds sends back until broker {plan.order.successor} takes"
            f" them, usually less than half a second{most}. No send fails.",
        ),
        Consequence(
            f"Producers and consumers go to broker {plan.order.successor}; broker"
            f" {plan.master} forwards what still comes to it, and follows as a slave.",
        ),
    ]


async def _planned(group: "OpenGroup", to: int | None) -> "Planned":
    from cometmq.elector.open_group import GroupFailed  # noqa: PLC0415  # an optional package
    from cometmq.elector.switchover import plan_switchover  # noqa: PLC0415

    if to is not None and to not in group.clients:
        raise GroupFailed(f"the elector's settings name no broker {to}")
    return await plan_switchover(group, to)


@asynccontextmanager
async def _opened(view: View, name: str) -> "AsyncIterator[OpenGroup]":
    from cometmq.elector.open_group import open_group  # noqa: PLC0415  # gRPC: 15 MB of memory

    _, settings = groups_of(view.desk.settings.elector_config)[name]
    async with open_group(settings, client_tls(settings)) as group:
        yield group


ACTIONS: Final = (
    Action(
        "group.switchover", "/broker/switchover", "Switch over", Role.ADMIN, Risk.MEDIUM, prepare,
        section="/brokers",
    ),
)  # fmt: skip
