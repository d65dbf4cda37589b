# SPDX-License-Identifier: Apache-2.0
"""Brokers and their copies: roles, rates, disks, lags, and settings with their differences."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.console.history.source import broker_key
from cometmq.console.login.roles import Role
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.pages.settings_origin import origins_of
from cometmq.console.pages.switchover import why_not
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.cells import duration, percent, rate, size
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import bad, missing
from cometmq.console.web.tables import Column
from cometmq.insight.model import Broker, BrokerState, Snapshot, Unreachable
from cometmq.insight.words import command
from cometmq.remoting.codes import request_name
from cometmq.remoting.errors import CometError

PATH: Final = "/brokers"
SLOW_MAX: Final = 10
_YEAR_S: Final = 366 * 86_400
_SECRET: Final = ("secret", "passw", "token", "credential")


class Row(msgspec.Struct, frozen=True):
    """One copy in the list."""

    broker: Broker
    now_ms: int

    @property
    def state(self) -> BrokerState | None:
        state = self.broker.state
        return state if isinstance(state, BrokerState) else None

    def of(self, read: Any) -> Any:
        """Return a figure, or why the broker does not tell it."""
        state = self.broker.state
        return state if isinstance(state, Unreachable) else read(state)

    @property
    def uptime_s(self) -> Any:
        return self.of(
            lambda it: (
                (self.now_ms - it.figures.started_ms) / 1_000 if it.figures.started_ms else None
            )
        )

    @property
    def faults(self) -> list[str]:
        """Return why this copy is not well, for the list."""
        if self.state is None:
            assert isinstance(self.broker.state, Unreachable)
            return [f"{self.broker.state.trouble}: {self.broker.state.reason}"]
        figures = self.state.figures
        texts = {
            "takes no messages": figures.writes_refused if self.broker.is_master else "",
            "cannot follow": figures.not_following if not self.broker.is_master else "",
            "slave missing": figures.slave_missing,
            "routes missing": figures.routes_missing,
            "accounts broken": figures.accounts_broken,
        }
        found = [f"{what}: {why}" for what, why in texts.items() if why]
        return found + (["no elector"] if figures.is_elector_missing else [])


def columns(view: View) -> list[Column[Row]]:
    """Return the columns of the list."""
    return [
        Column(
            "name", "Broker", lambda it: it.broker.name,
            link=lambda it: view.href("/broker", name=it.broker.name, id=it.broker.broker_id),
        ),
        Column("id", "Id", lambda it: it.broker.broker_id, "number"),
        Column("role", "Role", lambda it: it.broker.role),
        Column("state", "State", lambda it: "; ".join(it.faults) or "healthy",
               tone=lambda it: "bad" if it.faults else "good"),
        Column("in", "In", lambda it: it.of(lambda s: s.figures.incoming.tps), "rate",
               help="Messages stored per second"),
        Column("out", "Out", lambda it: it.of(lambda s: s.figures.outgoing.tps), "rate",
               help="Messages delivered per second"),
        Column("behind", "Behind", lambda it: it.of(lambda s: s.behind_bytes), "size",
               help="Bytes of the master's log that a slave lacks"),
        Column("disk", "Disk", lambda it: it.of(_disk), "percent", tone=_disk_tone,
               help="Used share of the commit log's disk"),
        Column("memory", "Memory", lambda it: it.of(_resident), "size",
               help="Memory of its process"),
        Column("native", "Native", lambda it: it.of(lambda s: s.native_share), "percent",
               help="Requests that took the native path"),
        Column("epoch", "Epoch", lambda it: it.of(lambda s: s.epoch), "number"),
        Column("sync", "In sync", lambda it: it.of(_in_sync)),
        Column("up", "Up", lambda it: it.uptime_s, "duration"),
        Column("version", "Version", lambda it: it.of(lambda s: s.figures.version or None)),
        Column("cluster", "Cluster", lambda it: it.broker.cluster),
    ]  # fmt: skip


def _disk(state: BrokerState) -> Any:
    return getattr(state.disk, "used_ratio", state.disk)


def _resident(state: BrokerState) -> Any:
    return getattr(state.memory, "resident_bytes", state.memory)


def _times(state: BrokerState) -> list[tuple[str, float | None, str]]:
    """Return how long sends and reads take, as the broker tells it."""
    names = {
        "99 % of the sends take at most": "putLatency99",
        "99.9 % of the sends": "putLatency999",
        "Slowest send": "putMessageEntireTimeMax",
        "Slowest read": "getMessageEntireTimeMax",
    }
    return [(title, _seconds(state.runtime.get(key)), "duration") for title, key in names.items()]


def _seconds(text: str | None) -> float | None:
    try:
        value = None if text is None else float(text) / 1_000
    except ValueError:
        return None
    return value if value is not None and 0 <= value < _YEAR_S else None


def _detours(state: BrokerState) -> list[tuple[str, str, int]]:
    """Return the requests that did not take the native path, the most frequent first."""
    rows = sorted(state.figures.slow_requests, key=lambda it: -it.count)[:SLOW_MAX]
    return [(request_name(it.code), it.reason, it.count) for it in rows]


def _disk_tone(row: Row) -> str:
    used = _disk(row.state) if row.state is not None else None
    if not isinstance(used, float):
        return ""
    return "bad" if used >= 0.9 else "warn" if used >= 0.75 else ""


def _in_sync(state: BrokerState) -> str | None:
    copies = state.figures.copies
    return None if copies is None else f"{len(copies.in_sync)} of {len(copies.members)}"


async def brokers(view: View) -> Shown:
    """List all copies."""
    snapshot = await view.snapshot()
    rows = [Row(it, snapshot.taken_ms) for it in snapshot.brokers]
    table = view.table(
        rows,
        columns(view),
        default="name",
        search=lambda it: f"{it.broker.name} {it.broker.address} {it.broker.cluster}",
    )
    return Shown(
        snapshot.brokers,
        "cometmq cluster",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={"table": table},
    )


async def broker(view: View) -> Shown:
    """Show one copy, with its settings beside those of the others."""
    name, broker_id = view.needed("name"), view.number("id", 0)
    snapshot = await view.snapshot()
    found = snapshot.broker(name, broker_id)
    if found is None:
        raise missing(f"there is no broker {name} with id {broker_id}")
    settings = await _settings(view, found, snapshot)
    shown = settings
    if view.is_set("differs"):
        shown = [it for it in settings if it.others]
    table = view.table(
        shown, SETTINGS, default="key", search=lambda it: f"{it.key} {it.value}",
        keep=("name", "id", "differs", "hours"), name="set_",
    )  # fmt: skip
    drawings = [
        Drawing("Messages per second", rate, {"stored": broker_key(name, broker_id, "in"),
                                              "delivered": broker_key(name, broker_id, "out")}),
        Drawing("Used disk", percent, {"disk": broker_key(name, broker_id, "disk")}),
    ]  # fmt: skip
    if not found.is_master:
        key = broker_key(name, broker_id, "behind")
        drawings.append(Drawing("Bytes behind the master", size, {"behind": key}))
    return Shown(
        {"broker": found, "settings": settings},
        " && ".join(
            [
                command("mqadmin brokerStatus", options=("-b", found.address)),
                command("mqadmin getBrokerConfig", options=("-b", found.address)),
            ]
        ),
        snapshot.taken_ms,
        extra={
            "row": Row(found, snapshot.taken_ms),
            "stays": why_not(view, name, snapshot),
            "copies": [it for it in snapshot.brokers if it.name == name],
            "table": table,
            "differs": view.is_set("differs"),
            "times": _times(found.state) if isinstance(found.state, BrokerState) else [],
            "detours": _detours(found.state) if isinstance(found.state, BrokerState) else [],
            "duration": duration,
            **await plots(view, drawings),
        },
        title=f"Broker {name} ({found.role} {broker_id})",
    )


class Setting(msgspec.Struct, frozen=True):
    """One setting of a broker, and the brokers where it differs."""

    key: str
    value: str
    source: str | None
    """Where the value is set; None if the broker does not tell."""
    others: Mapping[str, str]
    """The differing values by broker."""


SETTINGS: Final[list[Column[Setting]]] = [
    Column("key", "Setting", lambda it: it.key),
    Column("value", "Value", lambda it: it.value),
    Column("source", "Source", lambda it: it.source),
    Column(
        "others", "Differs at", lambda it: it.others, tone=lambda it: "warn" if it.others else ""
    ),
]
_OWN_BY_NATURE: Final = frozenset(
    {"brokerName", "brokerId", "brokerIP1", "brokerIP2", "listenPort", "haListenPort",
     "storePathRootDir", "storePathCommitLog", "adminHttpPort", "brokerRole", "haMasterAddress",
     "controlListenPort"}
)  # fmt: skip


async def _settings(view: View, own: Broker, snapshot: Snapshot) -> list[Setting]:
    """Return the settings of a broker; empty if it does not answer."""
    configs: dict[str, Mapping[str, str]] = {}
    for it in snapshot.brokers:
        if isinstance(it.state, BrokerState):
            try:
                client = view.admin().broker(it.address, name=it.name)
                configs[f"{it.name}:{it.broker_id}"] = await client.config()
            except CometError:
                continue
    label = f"{own.name}:{own.broker_id}"
    mine = configs.pop(label, {})
    origins = await origins_of(own.address, mine)
    return [
        Setting(
            key,
            "******" if _is_secret(key) and value else value,
            origins.get(key),
            {}
            if key in _OWN_BY_NATURE or _is_secret(key)
            else {name: its[key] for name, its in configs.items() if its.get(key, value) != value},
        )
        for key, value in sorted(mine.items())
    ]


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in _SECRET)


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
    found = snapshot.broker(name, broker_id)
    if found is None:
        raise missing(f"there is no broker {name} with id {broker_id}")
    if not key:
        return Form(fields, intro=f"Change a setting of {name} while it runs.")
    if _is_secret(key):
        raise bad(
            f"{key} may be a secret, and the address of this page would have it: change it in the"
            " broker's file"
        )
    address = found.address
    config = await view.admin().broker(address, name=name).config()

    async def perform(admin: AdminClient) -> str:
        await admin.broker(address, name=name).update_config({key: value})
        return f"{key} of {name} is {value} now."

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
            leads_to=view.href("/broker", name=name, id=broker_id),
            refusal="" if key in config else f"{name} has no setting {key}",
        ),
    )


PAGES: Final = (
    Page(PATH, "Brokers and copies", "brokers.html", brokers, menu="Brokers"),
    Page("/broker", "Broker", "broker.html", broker, section=PATH),
)
ACTIONS: Final = (
    Action(
        "broker.setting", "/broker/setting", "Change the setting", Role.ADMIN, Risk.MEDIUM,
        prepare_setting, section=PATH,
    ),
)  # fmt: skip
