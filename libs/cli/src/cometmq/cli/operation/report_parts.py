# SPDX-License-Identifier: Apache-2.0
"""The parts of `cometmq report`, from the evidence of `doctor` and the views of `top`: pure
functions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from cometmq.cli.operation.diagnosis import OK, Verdict, diagnose
from cometmq.cli.operation.evidence import Evidence
from cometmq.cli.operation.top_views import Screen, rows_of
from cometmq.cli.output import Cell
from cometmq.cli.verbs.pages import Part, Report
from cometmq.insight.finding import Severity, since_text
from cometmq.insight.model import Broker, BrokerState, Snapshot, Unknown, known
from cometmq.insight.words import counted, lasting
from cometmq.remoting.versions import version_name

FINDINGS_MAX: Final = 200


def report_of(evidence: Evidence, namesrv: str, top: int) -> Report:
    """Return the report; each table of topics, groups and refusals has at most `top` rows."""
    verdicts = [it for it in diagnose(evidence) if it.level != OK]
    found = evidence.snapshot
    parts = [_findings(evidence), _others(verdicts)]
    if found is not None:
        parts += [_brokers(found)]
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


def _findings(evidence: Evidence) -> Part:
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


def _brokers(snapshot: Snapshot) -> Part:
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
