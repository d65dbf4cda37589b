# SPDX-License-Identifier: Apache-2.0
"""What is wrong according to the evidence of `cometmq doctor`, and what to do: pure functions."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.cli.operation.evidence import UNRESOLVED, Evidence, Server
from cometmq.insight.finding import Severity, since_text
from cometmq.insight.model import BrokerState

SLOW_CONNECT_MS: Final = 200
CLOCK_S_MAX: Final = 5.0
OWN: Final = (
    "Port",
    "Path",
    "Dir",
    "Address",
    "Addr",
    "IP1",
    "IP2",
    "Name",
    "Id",
    "Role",
    "Members",
)
"""Endings of the names of settings that normally differ between brokers."""
OK: Final = "ok"
LEVELS: Final = [*Severity]
"""Worst first."""


class Verdict(NamedTuple):
    """One line of doctor's report: the state of an area, or a problem in it."""

    area: str
    level: str
    """ok, info, warning or critical."""
    text: str
    advice: str = ""
    runbook: str = ""


def diagnose(evidence: Evidence) -> list[Verdict]:
    """Return one verdict for each area without problems, and one for each problem."""
    parts = (
        ("names", _names(evidence)),
        ("connections", _connections(evidence)),
        ("name servers", _namesrvs(evidence)),
        ("clocks", _clocks(evidence)),
        ("versions", _versions(evidence)),
        ("settings", _settings(evidence)),
        ("cluster", _findings(evidence)),
    )
    verdicts: list[Verdict] = []
    for area, found in parts:
        rows = list(found)
        if not rows and (evidence.snapshot is not None or area == "connections"):
            rows.append(Verdict(area, OK, "nothing is wrong"))
        verdicts += rows
    return verdicts


def _names(evidence: Evidence) -> Iterator[Verdict]:
    for server in evidence.servers:
        if server.error.startswith(UNRESOLVED):
            yield Verdict(
                "names", Severity.CRITICAL, f"{_place(server)}: {server.error}",
                "correct the name, or the resolver of this machine",
            )  # fmt: skip


def _connections(evidence: Evidence) -> Iterator[Verdict]:
    if evidence.failure:
        yield Verdict(
            "connections", Severity.CRITICAL, evidence.failure,
            "start a name server, or correct its address: -n, NAMESRV_ADDR or the context",
            "namesrv-unreachable.md",
        )  # fmt: skip
    for server in evidence.servers:
        if server.error.startswith(UNRESOLVED):
            continue
        if server.error and server.connect_ms is None:
            hint = "start it, or open the port between it and this machine"
            if server.kind.startswith("broker"):
                hint += "; if it runs elsewhere, set brokerIP1 to an address that clients reach"
            yield Verdict(
                "connections", Severity.CRITICAL, f"{_place(server)}: {server.error}", hint,
                "program-down.md",
            )  # fmt: skip
        elif server.error:
            yield Verdict(
                "connections", Severity.CRITICAL, f"{_place(server)}: {server.error}",
                "look at its log and its /readyz", "namesrv-unreachable.md",
            )  # fmt: skip
        elif (server.connect_ms or 0) > SLOW_CONNECT_MS:
            yield Verdict(
                "connections", Severity.WARNING,
                f"{_place(server)}: connecting took {server.connect_ms} ms",
                "look at the network between this machine and it", "slow.md",
            )  # fmt: skip


def _place(server: Server) -> str:
    return f"{server.kind} {server.address}"


def _namesrvs(evidence: Evidence) -> Iterator[Verdict]:
    """Yield the name servers that lack a broker, because name servers do not copy each other's
    tables.
    """
    lists = {it.address: set(it.brokers) for it in evidence.servers if it.brokers is not None}
    every = set().union(*lists.values()) if lists else set()
    for address, found in lists.items():
        if missing := sorted(every - found):
            yield Verdict(
                "name servers", Severity.WARNING,
                f"name server {address} does not list {', '.join(missing)}",
                "give these brokers the addresses of all name servers (namesrvAddr)",
                "namesrv-unreachable.md",
            )  # fmt: skip


def _clocks(evidence: Evidence) -> Iterator[Verdict]:
    for name, ahead_s in evidence.clocks_s.items():
        if abs(ahead_s) > CLOCK_S_MAX:
            word = "ahead of" if ahead_s > 0 else "behind"
            yield Verdict(
                "clocks", Severity.WARNING,
                f"the clock of broker {name} is {abs(ahead_s):g} s {word} this machine's",
                "run a time service (chrony) on both; times of messages, delays and ages are wrong",
            )  # fmt: skip


def _states(evidence: Evidence) -> dict[str, BrokerState]:
    brokers = () if evidence.snapshot is None else evidence.snapshot.brokers
    return {
        f"{it.name}:{it.broker_id}": it.state for it in brokers if isinstance(it.state, BrokerState)
    }


def _versions(evidence: Evidence) -> Iterator[Verdict]:
    versions = {
        name: (state.figures.version, state.runtime.get("cometmqVersion", ""))
        for name, state in _states(evidence).items()
    }
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{name} {' '.join(filter(None, it))}" for name, it in versions.items())
        yield Verdict(
            "versions", Severity.WARNING, f"brokers have different versions: {listed}",
            "finish the upgrade", "releases-differ.md",
        )  # fmt: skip


def _settings(evidence: Evidence) -> Iterator[Verdict]:
    """Yield settings that differ at one broker from the value at most others."""
    tables = {name: it.settings for name, it in _states(evidence).items() if it.settings}
    for setting in sorted({it for table in tables.values() for it in table}):
        if setting.endswith(OWN) or setting.startswith("storePath"):
            continue
        values = {name: table[setting] for name, table in tables.items() if setting in table}
        if len(set(values.values())) < 2:
            continue
        usual = Counter(values.values()).most_common(1)[0][0]
        odd = {name: value for name, value in values.items() if value != usual}
        shown = ", ".join(f"{name} has {value[:60] or 'nothing'}" for name, value in odd.items())
        yield Verdict(
            "settings", Severity.INFO, f"{setting} is {usual[:60] or 'empty'}, but {shown}",
            "give all brokers the same settings, unless this is intended",
        )  # fmt: skip


def _findings(evidence: Evidence) -> Iterator[Verdict]:
    for it in evidence.found:
        text = it.text
        is_told = evidence.snapshot is None or it.since.ms < evidence.snapshot.taken_ms
        if is_told or not it.since.is_bound:  # the moment of the look itself says nothing
            text += f", {since_text(it.since, evidence.taken_ms)}"
        advice = f"{it.remedy.removesuffix('.')} (see {it.command})"
        yield Verdict("cluster", it.severity, text, advice, it.runbook)
