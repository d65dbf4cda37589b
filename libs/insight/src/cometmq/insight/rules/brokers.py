# SPDX-License-Identifier: Apache-2.0
"""Rules about brokers: unreachable ones, missing masters, full disks, mixed versions, and what
brokers report of themselves.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.client.admin.figures import BrokerFigures
from cometmq.insight.finding import Finding, Severity, found
from cometmq.insight.history import History
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Disk,
    Snapshot,
    Trouble,
    Unreachable,
    answers,
    known,
)
from cometmq.insight.words import command, lasting, listed, moment, sized

FULL_RATIO: Final = 0.85
"""Above this ratio, brokers delete messages before they are older than fileReservedTime."""
FULL_SOON_S: Final = 86_400
BEHIND_BYTES: Final = 64_000_000
_OF_GROUPS: Final = frozenset({"writes-refused", "copies-missing", "no-elector"})
"""Rules whose subject is a broker with all its copies."""
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


class Fault(NamedTuple):
    """A problem that a broker which answers reports of itself."""

    rule: str
    word: str
    """The problem in a table of brokers."""
    text: str
    remedy: str
    severity: Severity | None = None
    """None for that of the rule."""
    runbook: str = ""


def faults_of(whose: str, figures: BrokerFigures, *, is_master: bool) -> list[Fault]:
    """Return the problems of a copy, worst first; `whose` is its `place`."""
    faults = []
    copies = figures.copies
    if is_master and (why := figures.writes_refused):
        faults.append(
            Fault(
                "writes-refused", f"takes no messages: {why}", f"{whose} takes no messages: {why}",
                "look at its disk, its log and its /readyz",
                runbook="disk-full.md" if "disk" in why else "",
            )
        )  # fmt: skip
    if copies is not None and copies.missing:
        numbers, counts = (
            ", ".join(map(str, copies.missing)),
            (len(copies.in_sync), len(copies.members)),
        )
        faults.append(
            Fault(
                "copies-missing", f"lacks copies: {numbers}",
                f"the group of {whose} lacks copies: brokerId {numbers} not in sync ({counts[0]} of"
                f" {counts[1]} are, minInSync is {copies.min_in_sync})",
                "start the missing members, or wait until they have caught up",
                Severity.CRITICAL if counts[0] < copies.min_in_sync else None,
            )
        )  # fmt: skip
    if not is_master and (why := figures.not_following):
        text = f"{whose} cannot follow its master: {why}"
        remedy = "look at its log; if it catches up, wait"
        faults.append(Fault("copy-behind", f"cannot follow: {why}", text, remedy))
    if why := figures.slave_missing:
        faults.append(
            Fault(
                "copies-missing", f"no second copy: slave {why}",
                f"{whose} is a SYNC_MASTER, but its slave is {why}: it stores messages without a"
                " second copy, and sends end with SLAVE_NOT_AVAILABLE",
                "start the slave, or look at its log", runbook="slave-does-not-follow.md",
            )
        )  # fmt: skip
    if why := figures.routes_missing:
        text = f"{whose} is {why}: clients that ask these name servers do not find it"
        remedy = "remove the cause, and the broker registers again by itself"
        faults.append(Fault("routes-missing", why, text, remedy))
    if figures.is_elector_missing:
        text = f"no elector looks after {whose}, so nobody replaces a lost master of this group"
        remedy = "start one (cometmq elector, or the operator), or look at its /readyz"
        faults.append(Fault("no-elector", "no elector", text, remedy))
    if file := figures.accounts_broken:
        text = f"{whose} cannot use its account file {file}: it serves the accounts read before,"
        text += " and will not start again"
        remedy = "correct it as accounts.unreadable in the broker's log says"
        faults.append(Fault("accounts-broken", f"account file broken: {file}", text, remedy))
    return faults


def faulty(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find the problems that brokers report of themselves, and slaves that lack much of the log."""
    for broker, state in states(snapshot):
        whose = f"{broker.name}:{broker.broker_id}"
        faults = faults_of(place(broker), state.figures, is_master=broker.is_master)
        behind = state.behind_bytes
        if not isinstance(behind, int) or state.figures.not_following:
            behind = 0
        if behind > BEHIND_BYTES:
            text = f"{place(broker)} lacks {sized(behind)} of its master's log"
            faults.append(Fault("copy-behind", "", text, "look at its log; if it catches up, wait"))
        if why := state.figures.messages_damaged:
            text = f"{place(broker)} does not deliver damaged messages: {why}"
            remedy = "restore the bytes from another copy, or send these messages again"
            faults.append(Fault("messages-damaged", "", text, remedy))
        for it in faults:
            subject = broker.name if it.rule in _OF_GROUPS else whose
            yield found(
                it.rule, subject, it.text, it.remedy, severity=it.severity, runbook=it.runbook
            )


def disk_fills(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find disks that are full, or will be within a day."""
    for broker, state in states(snapshot):
        disk = state.disk
        if not isinstance(disk, Disk):
            continue
        is_full = disk.used_ratio >= FULL_RATIO
        is_soon = disk.full_in_s is not None and disk.full_in_s < FULL_SOON_S
        if not (is_full or is_soon):
            continue
        text = f"the disk of {place(broker)} is {disk.used_ratio:.0%} full"
        if disk.full_in_s is not None:
            text += f", and has no room left in {lasting(disk.full_in_s)} if it goes on so"
        yield found(
            "disk-full",
            f"{broker.name}:{broker.broker_id}",
            text,
            "lower fileReservedTime, add space, or send less",
            severity=Severity.CRITICAL if is_full and is_soon else None,
        )


def unreachable(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find the brokers that do not answer."""
    for broker in snapshot.brokers:
        state = broker.state
        if not isinstance(state, Unreachable):
            continue
        what, remedy = _DOWN[state.trouble]
        yield found(
            "broker-down",
            f"{broker.name}:{broker.broker_id}",
            f"{place(broker)} {what}: {state.reason}",
            remedy,
            severity=None if broker.is_master else Severity.WARNING,
            since=state.since,
        )


def unregistered(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find a cluster in which no broker is registered."""
    if not snapshot.brokers:
        yield found(
            "no-broker",
            "cluster",
            f"no broker is registered at {snapshot.namesrv}, so nobody can send or read",
            "start one, or check the namesrvAddr of those that run; a broker registers when it"
            " starts, and again within 30 s after a restart of the name server",
        )


def masterless(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find the brokers of which only slaves answer."""
    led = {it.name for it in snapshot.brokers if it.is_master}
    slaves = {it.name for it in snapshot.brokers if answers(it)} - led
    for name in sorted(slaves):
        yield found(
            "no-master",
            name,
            f"broker {name} has no master, so nobody can send to it",
            "start the master, or look at its log; a group with failover elects one: cometmq ha"
            " status",
        )


def topics_unrouted(snapshot: Snapshot, history: History) -> Iterator[Finding]:
    """Find the topics that brokers have, but that have no route."""
    keys = {f"{_UNROUTED}{it}": it for it in known(snapshot.unrouted)}
    history.keep_only(keys, _UNROUTED)
    for key, topic in keys.items():
        since = history.since(key, snapshot.taken_ms)
        if not since.is_bound and snapshot.taken_ms - since.ms < UNROUTED_MS:
            continue  # it is being deleted
        yield found(
            "topic-unrouted",
            topic,
            f"name servers do not know the topic {topic}, so clients cannot find it, although"
            " brokers have it",
            "change the topic once, for example its permission: its brokers then register it again",
            command=command("topic alter", topic, options=("--perm", "rw")),
            since=since,
        )


def releases_differ(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find out whether brokers of different versions are running."""
    versions = Counter(state.figures.version for _, state in states(snapshot))
    if len(versions) > 1:
        names = [f"{version} ({count})" for version, count in sorted(versions.items())]
        text = f"brokers of {len(versions)} versions are running: {listed(names)}"
        yield found("releases-differ", "cluster", text, "finish the upgrade")


SOON_S: Final = 21 * 86_400
URGENT_S: Final = 3 * 86_400


def certificates_expiring(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find certificates that have expired, or that expire within three weeks."""
    for it in snapshot.certificates:
        left_s = (it.expires_ms - snapshot.taken_ms) / 1000
        if left_s >= SOON_S:
            continue
        file = f"the certificate in {it.what}" if it.what else "the certificate"
        when = f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"
        yield found(
            "certificate-expires",
            f"{it.where} {it.what}".rstrip(),
            f"{file} of {it.where} {when} ({moment(it.expires_ms)})",
            "replace its file: programs load the new one without a restart",
            severity=Severity.CRITICAL if left_s < URGENT_S else None,
        )
