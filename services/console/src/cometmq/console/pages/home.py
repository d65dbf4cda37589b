# SPDX-License-Identifier: Apache-2.0
"""Home: the findings with their remedies, and totals of the cluster. Also the runbooks."""

from collections.abc import Callable
from functools import partial
from posixpath import normpath
from typing import Final

import msgspec
from markupsafe import Markup

from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.insight.findings import Finding, Severity
from cometmq.insight.model import BrokerState, Group, Snapshot, TopicKind, Unknown
from cometmq.insight.words import command

PER_RULE_MAX: Final = 5
_PLACES: Final = {
    "groups": ("/group", "name"),
    "topics": ("/topic", "name"),
    "dead-letters": ("/dead-letters/group", "group"),
}
"""The page about a single subject, and its argument, by the list page that a finding names."""
TONES: Final = {Severity.CRITICAL: "bad", Severity.WARNING: "warn", Severity.INFO: ""}


class Totals(msgspec.Struct, frozen=True):
    """The cluster in a few numbers."""

    brokers: int
    answering: int
    topics: int | Unknown
    groups: int | Unknown
    members: int | Unknown
    in_per_s: float
    out_per_s: float
    lag: int | Unknown
    dead_letters: int | Unknown


async def view(view: View) -> Shown:
    """Show the findings, worst first, and the totals."""
    snapshot = await view.snapshot()
    found = view.desk.findings.of(snapshot)
    totals = totals_of(snapshot)
    return Shown(
        {"findings": found, "totals": totals},
        "cometmq doctor",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={
            "rules": _by_rule(found),
            "totals": totals,
            "tones": TONES,
            "place_of": partial(_place, view),
            "now_ms": snapshot.taken_ms,
            "docs_url": view.desk.settings.docs_url,
            "notes": snapshot.notes,
        },
    )


def _place(view: View, finding: Finding) -> str:
    """Return the address of the page about the subject of a finding."""
    if finding.page not in _PLACES:
        return view.href(f"/{finding.page}")
    path, name = _PLACES[finding.page]
    subject, _, _ = finding.subject.partition(" in ")  # a group in a topic
    return view.href(path, **{name: subject})


def _by_rule(found: list[Finding]) -> list[tuple[list[Finding], int]]:
    """Return the first findings of each rule, worst first, and how many more it has."""
    rules: dict[str, list[Finding]] = {}
    for it in found:
        rules.setdefault(it.rule, []).append(it)
    return [(its[:PER_RULE_MAX], len(its) - PER_RULE_MAX) for its in rules.values()]


def totals_of(snapshot: Snapshot) -> Totals:
    """Sum up a snapshot; figures of brokers that do not answer are left out."""
    states = [
        (broker.is_master, broker.state)
        for broker in snapshot.brokers
        if isinstance(broker.state, BrokerState)
    ]
    masters = [state.figures for is_master, state in states if is_master]
    topics = snapshot.topics

    def of_groups(value: Callable[[Group], object]) -> int | Unknown:
        if isinstance(snapshot.groups, Unknown):
            return snapshot.groups
        own = [value(group) for group in snapshot.groups if not group.is_system]
        return sum(it for it in own if isinstance(it, int))

    return Totals(
        brokers=len(snapshot.brokers),
        answering=len(states),
        topics=topics
        if isinstance(topics, Unknown)
        else sum(it.kind is TopicKind.NORMAL for it in topics),
        groups=of_groups(lambda _: 1),
        members=of_groups(lambda it: None if isinstance(it.members, Unknown) else len(it.members)),
        in_per_s=sum(figures.incoming.tps for figures in masters),
        out_per_s=sum(figures.outgoing.tps for figures in masters),
        lag=of_groups(lambda it: it.lag),
        dead_letters=of_groups(lambda it: it.dead_letters),
    )


async def runbook(view: View) -> Shown:
    """Show a runbook."""
    from cometmq.console.web.markdown import as_html  # noqa: PLC0415  # rarely needed
    from cometmq.runtime.meanings.runbooks import runbook_text  # noqa: PLC0415  # rarely needed

    name = view.needed("name")
    text = runbook_text(name)
    if text is None:
        raise missing(f"there is no runbook {name}")
    title, _, rest = text.removeprefix("# ").partition("\n")
    return Shown(
        {"name": name, "text": text},
        command("explain", name),
        extra={"html": as_html(rest.strip(), partial(_link, view))},
        title=title,
    )


def _link(view: View, text: Markup, address: str) -> Markup:
    """Return a link of a runbook: to another one, or to a page of the documentation if the console
    knows its place; otherwise, name the file.
    """
    from cometmq.runtime.meanings.runbooks import runbook_text  # noqa: PLC0415  # rarely needed

    file, _, place = address.partition("#")
    anchor = f"#{place}" if place else ""
    if not file or runbook_text(file) is not None:
        href = view.href("/runbook", name=file) + anchor if file else anchor
    elif docs_url := view.desk.settings.docs_url:
        href = f"{docs_url}/runbooks/{address}"
    else:
        return Markup("{} ({})").format(text, normpath(f"docs/runbooks/{file}"))
    return Markup('<a href="{}">{}</a>').format(href, text)


PAGES: Final = (
    Page("/", "Home", "home.html", view, menu="Home"),
    Page("/runbook", "Runbook", "runbook.html", runbook, section="/"),
)
