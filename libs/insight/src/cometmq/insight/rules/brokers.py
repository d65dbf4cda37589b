# SPDX-License-Identifier: Apache-2.0
"""Rules about brokers: unreachable ones, missing masters, electors and routes, broken account
files, mixed versions.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

from cometmq.insight.finding import Condition, Severity
from cometmq.insight.history import History
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Snapshot,
    Trouble,
    Unreachable,
    answers,
    known,
)
from cometmq.insight.words import command, lasting, listed, moment

broker_condition: Final = partial(Condition, command="cometmq cluster", page="brokers")
_UNROUTED: Final = "unrouted:"
UNROUTED_MS: Final = 10_000
"""A topic without a route is reported only after this time, because it may be about to be
deleted.
"""
_DOWN: Final = {
    Trouble.DOWN: ("does not answer", "start it, or look at its log"),
    Trouble.HANGS: ("hangs", "look at its log and its /readyz"),
    Trouble.REFUSES: ("refuses to tell its state", "check the account that asks, and its rights"),
    Trouble.GARBLED: (
        "gives answers that cannot be used",
        "look whether a broker of a known version has that address",
    ),
    Trouble.GONE: (
        "is not registered",
        "start it, or look at its log: it may use other name servers",
    ),
}


def states(snapshot: Snapshot) -> Iterator[tuple[Broker, BrokerState]]:
    """Yield the brokers that answer."""
    for broker in snapshot.brokers:
        if isinstance(broker.state, BrokerState):
            yield broker, broker.state


def place(broker: Broker) -> str:
    """Return a broker's name, role and address."""
    word = "broker" if broker.is_master else f"slave {broker.broker_id} of"
    address = f" ({broker.address})" if broker.address else ""
    return f"{word} {broker.name}{address}"


def unreachable(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the brokers that do not answer."""
    for broker in snapshot.brokers:
        state = broker.state
        if not isinstance(state, Unreachable):
            continue
        what, remedy = _DOWN[state.trouble]
        yield broker_condition(
            rule="broker-down",
            severity=Severity.CRITICAL if broker.is_master else Severity.WARNING,
            subject=f"{broker.name}:{broker.broker_id}",
            text=f"{place(broker)} {what}: {state.reason}",
            remedy=remedy,
            runbook="program-down.md",
            since=state.since,
        )


def unregistered(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find a cluster in which no broker is registered."""
    if not snapshot.brokers:
        yield broker_condition(
            rule="no-broker",
            severity=Severity.CRITICAL,
            subject="cluster",
            text=f"no broker is registered at {snapshot.namesrv}, so nobody can send or read",
            remedy=(
                "start one, or check the namesrvAddr of those that run; a broker registers when it"
                " starts, and again within 30 s after a restart of the name server"
            ),
            runbook="program-down.md",
        )


def masterless(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the brokers of which only slaves answer."""
    led = {it.name for it in snapshot.brokers if it.is_master}
    slaves = {it.name for it in snapshot.brokers if answers(it)} - led
    for name in sorted(slaves):
        yield broker_condition(
            rule="no-master",
            severity=Severity.CRITICAL,
            subject=name,
            text=f"broker {name} has no master, so nobody can send to it",
            remedy=(
                "start the master, or look at its log; a group with failover elects one: cometmq ha"
                " status"
            ),
            runbook="group-degraded.md",
        )


def electorless(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the broker groups without a connected elector."""
    for broker, state in states(snapshot):
        if state.figures.is_elector_missing:
            yield broker_condition(
                rule="no-elector",
                severity=Severity.WARNING,
                subject=broker.name,
                text=(
                    f"no elector looks after {place(broker)}, so nobody replaces a lost master of"
                    " this group"
                ),
                remedy="start one (cometmq elector, or the operator), or look at its /readyz",
                runbook="group-degraded.md",
            )


def routes_missing(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the brokers that some name servers do not list."""
    for broker, state in states(snapshot):
        if missing := state.figures.routes_missing:
            yield broker_condition(
                rule="routes-missing",
                severity=Severity.CRITICAL,
                subject=f"{broker.name}:{broker.broker_id}",
                text=(
                    f"{place(broker)} is {missing}: clients that ask these name servers do not"
                    " find it"
                ),
                remedy="remove the cause, and the broker registers again by itself",
                runbook="namesrv-unreachable.md",
            )


def topics_unrouted(snapshot: Snapshot, history: History) -> Iterator[Condition]:
    """Find the topics that brokers have, but that have no route."""
    keys = {f"{_UNROUTED}{it}": it for it in known(snapshot.unrouted)}
    history.keep_only(keys, _UNROUTED)
    for key, topic in keys.items():
        since = history.since(key, snapshot.taken_ms)
        if not since.is_bound and snapshot.taken_ms - since.ms < UNROUTED_MS:
            continue  # it is being deleted
        yield Condition(
            rule="topic-unrouted",
            severity=Severity.CRITICAL,
            subject=topic,
            text=(
                f"name servers do not know the topic {topic}, so clients cannot find it, although"
                " brokers have it"
            ),
            remedy=(
                "change the topic once, for example its permission: its brokers then register it"
                " again"
            ),
            runbook="namesrv-unreachable.md",
            command=command("topic alter", topic, options=("--perm", "rw")),
            page="topics",
            since=since,
        )


def accounts_broken(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the brokers that will not start again with their account file."""
    for broker, state in states(snapshot):
        if file := state.figures.accounts_broken:
            yield broker_condition(
                rule="accounts-broken",
                severity=Severity.CRITICAL,
                subject=f"{broker.name}:{broker.broker_id}",
                text=(
                    f"{place(broker)} cannot use its account file {file}: it serves the accounts"
                    " read before, and will not start again"
                ),
                remedy="correct it as accounts.unreadable in the broker's log says",
                runbook="accounts-broken.md",
            )


def releases_differ(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find out whether brokers of different versions are running."""
    versions = Counter(state.figures.version for _, state in states(snapshot))
    if len(versions) > 1:
        names = [f"{version} ({count})" for version, count in sorted(versions.items())]
        yield broker_condition(
            rule="releases-differ",
            severity=Severity.INFO,
            subject="cluster",
            text=f"brokers of {len(versions)} versions are running: {listed(names)}",
            remedy="finish the upgrade",
            runbook="releases-differ.md",
        )


SOON_S: Final = 21 * 86_400
URGENT_S: Final = 3 * 86_400


def certificates_expiring(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find certificates that have expired, or that expire within three weeks."""
    for it in snapshot.certificates:
        left_s = (it.expires_ms - snapshot.taken_ms) / 1000
        if left_s >= SOON_S:
            continue
        file = f"the certificate in {it.what}" if it.what else "the certificate"
        when = f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"
        yield Condition(
            rule="certificate-expires",
            severity=Severity.CRITICAL if left_s < URGENT_S else Severity.WARNING,
            subject=f"{it.where} {it.what}".rstrip(),
            text=f"{file} of {it.where} {when} ({moment(it.expires_ms)})",
            remedy="replace its file: programs load the new one without a restart",
            runbook="certificate-expires.md",
            command="cometmq check certificate",
            page="brokers",
        )
