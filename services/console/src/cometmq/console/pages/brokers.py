# SPDX-License-Identifier: Apache-2.0
"""Brokers and their copies: roles, rates, disks, lags, and where memory and time go."""

from typing import Any, Final

import msgspec

from cometmq.console.history.source import broker_key
from cometmq.console.pages.broker_settings import broker_in
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.pages.switchover import why_not
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.insight.model import Broker, BrokerState, Unreachable
from cometmq.insight.rules.brokers import faults_of
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command, percent, rate, sized
from cometmq.remoting.codes import request_name

PATH: Final = "/brokers"
SLOW_MAX: Final = 10
_YEAR_S: Final = 366 * 86_400


class Row(msgspec.Struct, frozen=True):
    """A broker in the list; masters and slaves have rows of their own."""

    broker: Broker
    now_ms: int

    @property
    def state(self) -> BrokerState | None:
        state = self.broker.state
        return state if isinstance(state, BrokerState) else None

    def of(self, read: Any) -> Any:
        """Return a figure, or an Unknown with the reason why it is missing."""
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
        """Return the problems of this copy, for the list."""
        if self.state is None:
            assert isinstance(self.broker.state, Unreachable)
            return [f"{self.broker.state.trouble}: {self.broker.state.reason}"]
        faults = faults_of("", self.state.figures, is_master=self.broker.is_master)
        return [it.word for it in faults]


def columns(view: View) -> list[Column[Row]]:
    """Return the columns of the list, which fit on a laptop's screen; a broker's page has more."""
    return [
        Column(
            "name", "Broker", lambda it: it.broker.name,
            link=lambda it: address("/broker", name=it.broker.name, id=it.broker.broker_id),
        ),
        Column("id", "Id", lambda it: it.broker.broker_id, "number"),
        Column("member", "Member", lambda it: it.of(lambda s: s.member_id), "number",
               help="Its id in a group with failover, whatever its role; switchovers name it"),
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
        Column("sync", "In sync", lambda it: it.of(_in_sync)),
        Column("release", "Release", lambda it: it.of(release), "short"),
    ]  # fmt: skip


def release(state: BrokerState) -> str | None:
    """Return the program of a broker and its release; RocketMQ's is that of its protocol."""
    if own := state.runtime.get("cometmqVersion"):
        return f"CometMQ {own}"
    protocol = state.figures.version.removeprefix("V").replace("_", ".")
    return f"RocketMQ {protocol}" if protocol else None


def _disk(state: BrokerState) -> Any:
    return getattr(state.disk, "used_ratio", state.disk)


def _resident(state: BrokerState) -> Any:
    return getattr(state.memory, "resident_bytes", state.memory)


def _times(state: BrokerState) -> list[tuple[str, float | None, str]]:
    """Return how long sends and reads take, as the broker reports it."""
    names = {
        "Send, 99th percentile": "putLatency99",
        "Send, 99.9th percentile": "putLatency999",
        "Slowest send": "putMessageEntireTimeMax",
        "Slowest read": "getMessageEntireTimeMax",
    }
    return [(title, _seconds(state.runtime.get(key)), "latency") for title, key in names.items()]


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
    """Show one copy."""
    name, broker_id = view.needed("name"), view.number("id", 0)
    snapshot = await view.snapshot()
    found = broker_in(snapshot, name, broker_id)
    drawings = [
        Drawing("Messages per second", rate, {"stored": broker_key(name, broker_id, "in"),
                                              "delivered": broker_key(name, broker_id, "out")}),
        Drawing("Used disk", percent, {"disk": broker_key(name, broker_id, "disk")}),
    ]  # fmt: skip
    if not found.is_master:
        key = broker_key(name, broker_id, "behind")
        drawings.append(Drawing("Bytes behind the master", sized, {"behind": key}))
    state = found.state if isinstance(found.state, BrokerState) else None
    return Shown(
        {"broker": found},
        command("mqadmin brokerStatus", options=("-b", found.address)),
        snapshot.taken_ms,
        extra={
            "row": Row(found, snapshot.taken_ms),
            "release": None if state is None else release(state),
            "stays": why_not(view, name, snapshot),
            "copies": [it for it in snapshot.brokers if it.name == name],
            "times": [] if state is None else _times(state),
            "detours": [] if state is None else _detours(state),
            **await plots(view, drawings),
        },
        title=f"Broker {name} ({found.role} {broker_id})",
    )


PAGES: Final = (
    Page(PATH, "Brokers and copies", "brokers.html", brokers, menu="Brokers"),
    Page("/broker", "Broker", "broker.html", broker, section=PATH),
)
