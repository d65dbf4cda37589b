# SPDX-License-Identifier: Apache-2.0
"""Settings of the brokers: values, defaults, sources, differences, and the change of one."""

import asyncio
from collections.abc import Mapping
from typing import Final

from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import bad, missing
from cometmq.insight.broker_settings import (
    UNSET,
    Difference,
    Setting,
    differences,
    settings_of,
)
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.model import Broker, BrokerState, Snapshot, Unknown
from cometmq.insight.views.view import Column, R, address
from cometmq.insight.words import command
from cometmq.remoting.errors import AccessDenied, CometError, ServerError
from cometmq.runtime.redaction import looks_secret

SECTION: Final = "/brokers"
PATH: Final = "/brokers/settings"
OWN: Final = "/broker/settings"
NOT_TOLD: Final = Unknown("this broker tells only the values of its settings, as RocketMQ's do")
NOT_THERE: Final = Unknown("this broker does not have the setting")

Told = dict[str, list[Setting]]
"""The settings by broker."""


class Row(Setting, frozen=True):
    """A setting of a broker, and the brokers of its cluster where it differs."""

    others: Mapping[str, str] = {}
    """The differing values by broker."""


SETTINGS: Final[list[Column[Row]]] = [
    Column("key", "Setting", lambda it: it.name, "short"),
    Column("changed", "Changed", lambda it: _told(it, it.is_changed), "flag",
           tone=lambda it: "warn" if it.is_changed else "",
           help="Whether it has another value than the default"),
    Column("value", "Value", lambda it: it.shown, "id"),
    Column("default", "Default", lambda it: _told(it, it.default), "id"),
    Column("source", "Source", lambda it: _told(it, it.source)),
    Column(
        "others", "Differs at", lambda it: it.others, tone=lambda it: "warn" if it.others else ""
    ),
]  # fmt: skip


def _told(setting: Setting, fact: R | None) -> R | str | Unknown:
    return NOT_TOLD if setting.source is None else UNSET if fact is None else fact


async def settings_in(view: View, cluster: str, snapshot: Snapshot) -> tuple[Told, dict[str, str]]:
    """Return the settings of the brokers of a cluster, and the reasons of the brokers that did not
    return them.
    """
    admin = view.admin()

    async def ask(it: Broker) -> list[Setting] | CometError:
        try:
            return await settings_of(admin.broker(it.address, name=it.name))
        except CometError as error:
            return error

    asked = [
        it for it in snapshot.brokers if it.cluster == cluster and isinstance(it.state, BrokerState)
    ]
    async with asyncio.TaskGroup() as tasks:
        answers = {label_of(it): tasks.create_task(ask(it)) for it in asked}
    told: Told = {}
    failures: dict[str, str] = {}
    for label, task in answers.items():
        if isinstance(answer := task.result(), CometError):
            failures[label] = str(answer)
        else:
            told[label] = answer
    return told, failures


def broker_in(snapshot: Snapshot, name: str, broker_id: int) -> Broker:
    """Return a copy of a broker; raise Problem if there is none."""
    found = snapshot.broker(name, broker_id)
    if found is None:
        raise missing(f"there is no broker {name} with id {broker_id}")
    return found


def label_of(broker: Broker) -> str:
    return f"{broker.name}:{broker.broker_id}"


def rows_of(broker: Broker, told: Told) -> list[Row]:
    """Return the settings of one broker, with the values of other brokers that differ."""
    label = label_of(broker)
    different = {it.name: it.settings for it in differences(told)}
    return [
        Row(
            own.name,
            own.value,
            own.default,
            own.source,
            others={
                name: other.shown
                for name, other in different.get(own.name, {}).items()
                if other.value != own.value
            },
        )
        for own in told.get(label, [])
    ]


async def settings(view: View) -> Shown:
    """List the settings of one broker, those that are not the default first."""
    name, broker_id = view.needed("name"), view.number("id", 0)
    snapshot = await view.snapshot()
    found = broker_in(snapshot, name, broker_id)
    told, failures = await settings_in(view, found.cluster, snapshot)
    rows = sorted(rows_of(found, told), key=lambda it: it.name)
    shown = [it for it in rows if it.others] if view.is_set("differs") else rows
    return Shown(
        {"broker": found.address, "settings": rows},
        command("config show", label_of(found)),
        snapshot.taken_ms,
        failures,
        extra={
            "broker": found,
            "differs": view.is_set("differs"),
            "table": view.table(
                shown, SETTINGS, default="-changed", keep=("name", "id", "differs"),
                search=lambda it: f"{it.name} {it.value}",
            ),
        },
        title=f"Settings of {name} ({found.role} {broker_id})",
    )  # fmt: skip


async def compare(view: View) -> Shown:
    """List the settings that differ between the brokers of a cluster."""
    snapshot = await view.snapshot()
    clusters = sorted({it.cluster for it in snapshot.brokers})
    cluster = view.text("cluster") or next(iter(clusters), "")
    if clusters and cluster not in clusters:
        raise missing(f"there is no cluster {cluster}")
    told, failures = await settings_in(view, cluster, snapshot)
    found = differences(told)

    def of(broker: str) -> Column[Difference]:
        def value(it: Difference) -> str | Unknown:
            setting = it.settings.get(broker)
            return NOT_THERE if setting is None else setting.shown

        def tone(it: Difference) -> str:
            setting = it.settings.get(broker)
            return "warn" if setting is not None and setting.is_changed else ""

        name, _, broker_id = broker.rpartition(":")
        return Column(
            broker,
            broker,
            value,
            "short",
            tone=tone,
            link=lambda it: address(OWN, name=name, id=broker_id, find=it.name),
        )

    columns = [Column[Difference]("key", "Setting", lambda it: it.name), *map(of, told)]
    table = view.table(
        found, columns, default="key", keep=("cluster",),
        search=lambda it: f"{it.name} {' '.join(one.shown for one in it.settings.values())}",
    )  # fmt: skip
    return Shown(
        {"cluster": cluster, "brokers": list(told), "differences": found},
        command("config diff", options=("-c", cluster) if len(clusters) > 1 else ()),
        snapshot.taken_ms,
        {**silent_brokers(snapshot), **failures},
        extra={"table": table, "clusters": clusters, "chosen": cluster, "told": told},
    )


async def prepare_setting(view: View) -> Form:
    """Plan the change of one setting of a running broker."""
    name, broker_id = view.needed("name"), view.number("id", 0)
    key, value = view.text("key"), view.text("value")
    fields = [
        Field("name", "Broker", "hidden", name),
        Field("id", "Id", "hidden", str(broker_id)),
        Field("key", "Setting", value=key, is_needed=True),
        Field("value", "Value", value=value),
    ]
    snapshot = await view.snapshot()
    found = broker_in(snapshot, name, broker_id)
    if not key:
        return Form(fields, intro=f"Change a setting of {name} while it runs.")
    if looks_secret(key):
        raise bad(
            f"{key} may be a secret, and the address of this page would have it: change it in the"
            " broker's file"
        )
    address = found.address
    config = await view.admin().broker(address, name=name).config()

    async def perform(admin: AdminClient) -> Done:
        try:
            await admin.broker(address, name=name).update_config({key: value})
        except AccessDenied:
            raise
        except ServerError as error:  # only the broker knows which values a setting accepts
            raise InvalidArgument(str(error)) from error
        return Done(f"{key} of {name} is {value} now.")

    return Form(
        fields,
        Plan(
            what=f"Set {key} of {name} to {value}",
            subject=name,
            before={key: config.get(key)},
            after={key: value},
            consequences=[
                Consequence(
                    "The broker checks the value and refuses a setting that cannot change."
                ),
                Consequence("Other copies of the broker keep their own value.", "warn"),
            ],
            command=command(
                "mqadmin updateBrokerConfig", options=("-b", address, "-k", key, "-v", value)
            ),
            perform=perform,
            leads_to=view.href(OWN, name=name, id=broker_id, find=key),
            refusal="" if key in config else f"{name} has no setting {key}",
        ),
    )


PAGES: Final = (
    Page(PATH, "Settings that differ", "settings.html", compare, section=SECTION),
    Page(OWN, "Settings", "broker_settings.html", settings, section=SECTION),
)
ACTIONS: Final = (
    Action(
        "broker.setting", "/broker/setting", "Change the setting", Role.ADMIN, Risk.MEDIUM,
        prepare_setting, section=SECTION,
    ),
)  # fmt: skip
