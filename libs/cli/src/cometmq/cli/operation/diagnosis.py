# SPDX-License-Identifier: Apache-2.0
"""What is wrong according to the evidence of `cometmq doctor`, and what to do: pure functions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cometmq.cli.operation.evidence import UNRESOLVED, Evidence, Server
from cometmq.cli.operation.top_views import Screen, rows_of
from cometmq.cli.output import Cell
from cometmq.cli.verbs.pages import Part, Report
from cometmq.insight.finding import Severity, since_text
from cometmq.insight.model import Broker, BrokerState, Snapshot, Unknown, known
from cometmq.insight.words import counted, lasting
from cometmq.remoting.versions import version_name

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


FINDINGS_MAX: Final = 200


def report_of(evidence: Evidence, namesrv: str, top: int) -> Report:
    """Return the report; each table of topics, groups and refusals has at most `top` rows."""
    verdicts = [it for it in diagnose(evidence) if it.level != OK]
    found = evidence.snapshot
    parts = [_finding_rows(evidence), _others(verdicts)]
    if found is not None:
        parts += [_broker_rows(found)]
        parts += [
            _view(found, "groups", "Lag", "groups", top, only="Lag"),
            _view(found, "groups", "Dead letters", "dead letters", top, only="Dead letters"),
            _view(found, "topics", "Topics", "topics", top),
            _view(found, "refused", "Refused requests", "refused requests", top),
            _clients(found),
            _unknown(found),
        ]
    return Report(
        taken_ms=evidence.taken_ms,
        namesrv=namesrv if found is None else found.namesrv,
        host=evidence.host,
        program=evidence.program,
        verdict=_verdict(verdicts, evidence),
        parts=parts,
    )


def _verdict(verdicts: Sequence[Verdict], evidence: Evidence) -> str:
    if evidence.failure:
        return f"The cluster was not reached: {evidence.failure}"
    levels = Counter(it.level for it in verdicts)
    bad = [
        counted(levels[level], noun)
        for level, noun in ((Severity.CRITICAL, "critical problem"), (Severity.WARNING, "warning"))
        if levels[level]
    ]
    return f"{' and '.join(bad)}." if bad else "Nothing is wrong."


def _finding_rows(evidence: Evidence) -> Part:
    columns = ("Level", "What", "Since", "What to do", "Command", "Runbook")
    rows: list[list[Cell]] = [
        [
            it.severity.value, it.text, since_text(it.since, evidence.taken_ms), it.remedy,
            it.command, it.runbook,
        ]
        for it in evidence.found[:FINDINGS_MAX]
    ]  # fmt: skip
    left_out = max(0, len(evidence.found) - FINDINGS_MAX)
    return Part("findings", "What is wrong", columns, rows, "Nothing is wrong.", left_out)


def _others(verdicts: Sequence[Verdict]) -> Part:
    columns = ("Level", "Area", "What", "What to do", "Runbook")
    rows: list[list[Cell]] = [
        [it.level, it.area, it.text, it.advice or None, it.runbook or None]
        for it in verdicts
        if it.area != "cluster"
    ]
    title = "Connections, clocks, versions and settings"
    left_out = max(0, len(rows) - FINDINGS_MAX)
    empty = "Nothing is wrong with them."
    return Part("surroundings", title, columns, rows[:FINDINGS_MAX], empty, left_out)


def _broker_rows(snapshot: Snapshot) -> Part:
    columns = (
        "Broker", "Role", "Address", "Version", "Up for", "In per s", "Out per s", "Disk %",
        "Full in", "Behind bytes", "State",
    )  # fmt: skip
    rows = [_broker(it, snapshot.taken_ms) for it in snapshot.brokers]
    return Part("brokers", "Brokers", columns, rows, "No broker is registered.")


def _broker(broker: Broker, now_ms: int) -> list[Cell]:
    name, state = f"{broker.name}:{broker.broker_id}", broker.state
    if not isinstance(state, BrokerState):
        facts: list[Cell] = [None] * 7
        return [name, broker.role, broker.address, *facts, f"{state.trouble}: {state.reason}"]
    figures, disk, behind = state.figures, state.disk, state.behind_bytes
    full_s = None if isinstance(disk, Unknown) else disk.full_in_s
    version = state.runtime.get("cometmqVersion", "")
    return [
        name,
        broker.role,
        broker.address,
        f"{figures.version} ({version})" if version else figures.version,
        lasting((now_ms - figures.started_ms) / 1000) if figures.started_ms else None,
        round(figures.incoming.tps, 1),
        round(figures.outgoing.tps, 1),
        None if isinstance(disk, Unknown) else round(100 * disk.used_ratio, 1),
        None if full_s is None else lasting(full_s),
        None if isinstance(behind, Unknown) else behind,
        "answers",
    ]


def _view(
    snapshot: Snapshot, view: str, title: str, noun: str, top: int, *, only: str = ""
) -> Part:
    """Return the first rows of a view of `top`; with `only`, those with a figure in this column."""
    columns, rows = rows_of(snapshot, Screen(view, only))
    if only:
        at = columns.index(only)
        rows = [it for it in rows if it[at]]
    name = noun.replace(" ", "_") if only != "Lag" else "lag"
    empty = "Every group has read everything." if only == "Lag" else f"There are no {noun}."
    return Part(name, title, columns, rows[:top], empty, max(0, len(rows) - top))


def _clients(snapshot: Snapshot) -> Part:
    counts: Counter[tuple[str, str, str]] = Counter()
    for group in known(snapshot.groups):
        for it in () if isinstance(group.members, Unknown) else group.members:
            counts["consumer", it.language, version_name(it.version)] += 1
    for maker in known(snapshot.producers):
        counts["producer", maker.language, version_name(maker.version)] += 1
    rows: list[list[Cell]] = [[*key, count] for key, count in sorted(counts.items())]
    columns = ("Kind", "Language", "Version", "Connections")
    return Part("clients", "Clients", columns, rows, "No client is connected.")


def _unknown(snapshot: Snapshot) -> Part:
    """Return what the other tables lack, so that no unknown figure looks like 0."""
    rows: list[list[Cell]] = [
        [f"broker {name}", "it has no master that answers"] for name in snapshot.missing_brokers
    ]
    for name in ("topics", "groups", "producers", "half_messages", "delayed", "refusals"):
        found = getattr(snapshot, name)
        if isinstance(found, Unknown):
            rows.append([name.replace("_", " "), found.reason])
    rows += [["a broker's answer", note] for note in snapshot.notes]
    return Part("unknown", "What is missing here", ("What", "Why"), rows, "Nothing is missing.")
