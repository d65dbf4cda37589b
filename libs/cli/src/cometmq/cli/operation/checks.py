# SPDX-License-Identifier: Apache-2.0
"""The checks of `cometmq check`: pure functions of a snapshot, and the forms of their results."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from cometmq.insight.model import (
    Broker,
    BrokerState,
    Group,
    Snapshot,
    Topic,
    TopicKind,
    Unknown,
    Unreachable,
    answers,
)
from cometmq.insight.rules.clients import is_shut
from cometmq.insight.words import counted, lasting
from cometmq.remoting.visible import visible


class Status(IntEnum):
    """The exit status of a check, as Nagios reads it."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_RANK: Final = (Status.OK, Status.WARNING, Status.UNKNOWN, Status.CRITICAL)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst status; CRITICAL is worse than UNKNOWN."""
    return max(statuses, key=_RANK.index, default=Status.OK)


class Limits(msgspec.Struct, frozen=True):
    """The values from which a figure is a warning, or critical."""

    warn: float | None = None
    critical: float | None = None
    is_floor: bool = False
    """Whether values below the limits are bad, instead of those that reach them."""

    def status(self, value: float) -> Status:
        """Return the status of a value."""
        if self.critical is not None and self._is_bad(value, self.critical):
            return Status.CRITICAL
        if self.warn is not None and self._is_bad(value, self.warn):
            return Status.WARNING
        return Status.OK

    def _is_bad(self, value: float, limit: float) -> bool:
        return value < limit if self.is_floor else value >= limit


class Item(msgspec.Struct, frozen=True):
    """The state of one broker, group, topic or disk."""

    name: str
    status: Status
    text: str
    figure: str = ""
    value: float | None = None
    limits: Limits = Limits()


def of_figure(  # one parameter per part of the sentence
    name: str,
    figure: str,
    value: float | Unknown,
    limits: Limits,
    text: str,
    missing: Sequence[str] = (),
) -> Item:
    """Return the item of one figure; if brokers are missing, the figure is a lower bound."""
    if isinstance(value, Unknown):
        return Item(name, Status.UNKNOWN, f"{figure} is unknown: {value.reason}", figure)
    status = limits.status(value)
    if missing and status is not Status.CRITICAL:
        status, text = Status.UNKNOWN, f"at least {text}; {', '.join(missing)} missing"
    return Item(name, status, text, figure, value, limits)


def brokers(snapshot: Snapshot, names: Sequence[str], limits: Limits) -> list[Item]:
    """Check that brokers answer and take messages, and how long the slowest answer took."""
    items = [_broker(it) for it in snapshot.brokers if not names or it.name in names]
    found = {it.name for it in snapshot.brokers}
    items += [
        Item(name, Status.CRITICAL, "is not registered") for name in names if name not in found
    ]
    if not items:
        items.append(Item("cluster", Status.CRITICAL, "no broker is registered"))
    took = of_figure(
        "cluster", "answer_ms", snapshot.took_ms, limits, f"answered in {snapshot.took_ms:,} ms"
    )
    return [*items, took]


def _broker(broker: Broker) -> Item:
    name = f"{broker.name}:{broker.broker_id}"
    state = broker.state
    if isinstance(state, Unreachable):
        return Item(name, Status.CRITICAL, f"{state.trouble}: {state.reason}")
    figures = state.figures
    for reason, text in (
        (figures.writes_refused if broker.is_master else "", "takes no messages"),
        (figures.not_following, "cannot follow its master"),
        (figures.slave_missing, "stores no second copy"),
        (figures.messages_damaged, "does not deliver damaged messages"),
        (figures.accounts_broken, "cannot use its account file"),
    ):
        if reason:
            return Item(name, Status.CRITICAL, f"{text}: {reason}")
    if figures.routes_missing:
        return Item(name, Status.WARNING, f"is {figures.routes_missing}")
    if figures.is_elector_missing:
        return Item(name, Status.WARNING, "no elector looks after its group")
    return Item(name, Status.OK, f"{broker.role} answers")


def groups(
    snapshot: Snapshot, names: Sequence[str], lag: Limits, behind: Limits, members_min: int
) -> list[Item]:
    """Check how far groups are behind, in messages and seconds, and how many members they have."""
    return _all_groups(snapshot, names, lambda it: _group(it, lag, behind, members_min))


def _all_groups(
    snapshot: Snapshot, names: Sequence[str], judge: Callable[[Group], Sequence[Item]]
) -> list[Item]:
    """Check the groups with these names, or all that users created."""
    if isinstance(snapshot.groups, Unknown):
        return [Item("groups", Status.UNKNOWN, f"are unknown: {snapshot.groups.reason}")]
    wanted = [it for it in snapshot.groups if it.name in names or not (names or it.is_system)]
    items = [item for group in wanted for item in judge(group)]
    return items + _absent("group", names, {it.name for it in wanted}, snapshot)


def _group(group: Group, lag: Limits, behind: Limits, members_min: int) -> list[Item]:
    missing = group.missing_brokers
    count = 0 if isinstance(group.lag, Unknown) else group.lag
    seconds = 0.0 if isinstance(group.behind_s, Unknown) else group.behind_s
    items = [
        of_figure(group.name, "lag", group.lag, lag, counted(count, "unread message"), missing),
        of_figure(
            group.name, "behind_s", group.behind_s, behind, f"{lasting(seconds)} behind", missing
        ),
    ]
    if group.lost:
        text = f"lost {counted(group.lost, 'message')}, deleted before it read them"
        items.append(Item(group.name, Status.CRITICAL, text, "lost", group.lost))
    if group.skips:
        text = f"will skip {counted(group.skips, 'message')}: its offsets are beyond the end"
        items.append(Item(group.name, Status.CRITICAL, text, "skips", group.skips))
    if members_min and not isinstance(group.members, Unknown):
        online = len(group.members)
        status = Status.OK if online >= members_min else Status.CRITICAL
        items.append(Item(group.name, status, counted(online, "member"), "members", online))
    return items


def topics(snapshot: Snapshot, names: Sequence[str], limits: Limits) -> list[Item]:
    """Check that topics exist and can be written and read, and the age of the newest message."""
    if isinstance(snapshot.topics, Unknown):
        return [Item("topics", Status.UNKNOWN, f"are unknown: {snapshot.topics.reason}")]
    wanted = [
        it
        for it in snapshot.topics
        if it.name in names or (not names and it.kind is TopicKind.NORMAL)
    ]
    found = {it.name for it in wanted}
    items = [
        item
        for topic in wanted
        for item in _topic(topic, snapshot, limits, is_named=topic.name in names)
    ]
    return [*items, *_absent("topic", names, found, snapshot)]


def _topic(topic: Topic, snapshot: Snapshot, limits: Limits, *, is_named: bool) -> list[Item]:
    status, text = Status.OK, f"exists at {', '.join(topic.brokers)}"
    if topic.lacks:
        status, text = Status.CRITICAL, f"cannot be {topic.lacks}"
        if not is_named and is_shut(snapshot, topic):  # who names a topic needs it
            status, text = Status.OK, "is closed on purpose: no permission, and nothing unread"
    items = [Item(topic.name, status, text)]
    if limits != Limits():
        written = topic.last_write_ms
        if isinstance(written, Unknown):
            age: float | Unknown = written
        elif written is None:
            age = Unknown("it has no message")
        else:
            age = max(0.0, (snapshot.taken_ms - written) / 1000)
        words = "" if isinstance(age, Unknown) else f"last message {lasting(age)} ago"
        items.append(of_figure(topic.name, "age_s", age, limits, words))
    return items


def _absent(
    noun: str, names: Sequence[str], found: Collection[str], snapshot: Snapshot
) -> list[Item]:
    """Return an item for each of the names that was not found."""
    status, text = Status.CRITICAL, f"no broker knows this {noun}"
    if missing := snapshot.missing_brokers:
        status, text = Status.UNKNOWN, f"{noun} not found, but {', '.join(missing)} missing"
    return [Item(name, status, text) for name in names if name not in found]


def copies(snapshot: Snapshot, names: Sequence[str], limits: Limits) -> list[Item]:
    """Check that every broker group has all its copies."""
    items: list[Item] = []
    by_name: dict[str, list[Broker]] = {}
    for broker in snapshot.brokers:
        if not names or broker.name in names:
            by_name.setdefault(broker.name, []).append(broker)
    for name, members in by_name.items():
        states = [it.state for it in members if it.is_master and answers(it)]
        master = states[0] if states else None
        if not isinstance(master, BrokerState):
            items.append(Item(name, Status.CRITICAL, "has no master that answers"))
            continue
        items.append(_copies(name, master, [it for it in members if not it.is_master], limits))
    return [*items, *_absent("broker", names, by_name, snapshot)]


def _copies(name: str, master: BrokerState, slaves: Sequence[Broker], limits: Limits) -> Item:
    group = master.figures.copies
    if group is not None:
        missing = [str(it) for it in group.missing]
        text = f"{len(group.in_sync)} of {len(group.members)} copies in sync"
        if len(group.in_sync) < group.min_in_sync:
            return Item(name, Status.CRITICAL, f"{text}, minInSync is {group.min_in_sync}")
    else:
        missing = [str(it.broker_id) for it in slaves if not _follows(it)]
        text = f"{len(slaves) - len(missing)} of {counted(len(slaves), 'slave')} follow"
        if master.figures.slave_missing:
            return Item(name, Status.CRITICAL, f"second copy: {master.figures.slave_missing}")
    if missing:
        text += f"; missing: {', '.join(missing)}"
    return of_figure(name, "missing_copies", len(missing), limits, text)


def _follows(slave: Broker) -> bool:
    state = slave.state
    return isinstance(state, BrokerState) and not state.figures.not_following


def dead_letters(snapshot: Snapshot, names: Sequence[str], limits: Limits) -> list[Item]:
    """Check how many dead letters of groups were not sent again, as doctor and the console do."""

    def judge(group: Group) -> Sequence[Item]:
        left = group.dead_left
        text = counted(0 if isinstance(left, Unknown) else left, "dead letter")
        if group.dead_sent:
            text += f" not sent again, {group.dead_sent:,} sent again"
        missing = group.missing_brokers
        return [of_figure(group.name, "dead_letters", left, limits, text, missing)]

    return _all_groups(snapshot, names, judge)


def disks(snapshot: Snapshot, names: Sequence[str], limits: Limits) -> list[Item]:
    """Check how full the disks of the commit logs are, in percent."""
    items = []
    for broker in snapshot.brokers:
        if names and broker.name not in names:
            continue
        name, state = f"{broker.name}:{broker.broker_id}", broker.state
        if isinstance(state, Unreachable):
            items.append(Item(name, Status.UNKNOWN, f"does not answer: {state.reason}"))
        elif isinstance(state.disk, Unknown):
            items.append(Item(name, Status.UNKNOWN, f"disk is unknown: {state.disk.reason}"))
        else:
            percent = round(100 * state.disk.used_ratio, 1)
            rest = state.disk.full_in_s
            soon = "" if rest is None else f", full in {lasting(rest)} if the log grows on"
            text = f"{percent:g} % used{soon}"
            items.append(of_figure(name, "used_percent", percent, limits, text))
    found = {it.name for it in snapshot.brokers}
    return [*items, *_absent("broker", names, found, snapshot)]


def certificates(snapshot: Snapshot, limits: Limits) -> list[Item]:
    """Check how many days are left until certificates expire."""
    items = []
    for it in snapshot.certificates:
        left_s = (it.expires_ms - snapshot.taken_ms) / 1000
        name = f"{it.where} {it.what}".rstrip()
        text = f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"
        items.append(of_figure(name, "days_left", round(left_s / 86_400, 1), limits, text))
    return items


# -- forms ------------------------------------------------------------------------------------


def as_text(check: str, items: Sequence[Item]) -> str:
    """Return a line of text for each item, worst first."""
    if not items:
        return f"OK: {check}: there is nothing to check\n"
    return "".join(
        f"{it.status.name}: {check} {visible(it.name)}: {visible(it.text)}{_limit(it)}\n"
        for it in _sorted(items)
    )


def _limit(item: Item) -> str:
    value = {Status.WARNING: item.limits.warn, Status.CRITICAL: item.limits.critical}
    limit = value.get(item.status)
    word = "below" if item.limits.is_floor else "at"
    return "" if limit is None else f" ({item.status.name.lower()} {word} {limit:g})"


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda it: (-_RANK.index(it.status), it.name))


def as_json(check: str, items: Sequence[Item]) -> str:
    """Return the overall status and all items, worst first, as one JSON document."""
    rows = [
        {
            "name": it.name,
            "status": it.status.name.lower(),
            "text": it.text,
            "figure": it.figure or None,
            "value": it.value,
            "warn": it.limits.warn,
            "critical": it.limits.critical,
        }
        for it in _sorted(items)
    ]
    status = worst(it.status for it in items)
    return json.dumps({"check": check, "status": status.name.lower(), "items": rows}) + "\n"


def as_nagios(check: str, items: Sequence[Item]) -> str:
    """Return one line with performance data, as Nagios and Icinga read it."""
    status = worst(it.status for it in items)
    bad = [it for it in _sorted(items) if it.status is not Status.OK]
    text = "; ".join(f"{it.name}: {it.text}" for it in bad) or f"{len(items):,} checked"
    data = " ".join(
        f"'{_plain(it.name)}_{it.figure}'={it.value:g};{_bound(it.limits, it.limits.warn)};"
        f"{_bound(it.limits, it.limits.critical)};0"
        for it in items
        if it.value is not None
    )
    line = f"COMETMQ {check.upper()} {status.name} - {_plain(text)}"
    return (f"{line} | {data}" if data else line) + "\n"


def _bound(limits: Limits, limit: float | None) -> str:
    return "" if limit is None else f"{limit:g}{':' if limits.is_floor else ''}"


def _plain(text: str) -> str:
    """Return a text without the signs that separate the parts of Nagios' line."""
    return visible(text).translate({ord("|"): "!", ord("'"): "`", ord("="): "~", 10: " ", 9: " "})


def as_prometheus(check: str, items: Sequence[Item]) -> str:
    """Return the text format of Prometheus, as for node_exporter's textfile collector."""
    lines = [
        "# HELP cometmq_check_status 0 ok, 1 warning, 2 critical, 3 unknown.",
        "# TYPE cometmq_check_status gauge",
    ]
    by_name: dict[str, list[Status]] = {}
    for it in items:
        by_name.setdefault(it.name, []).append(it.status)
    lines += [
        f"cometmq_check_status{_labels(check=check, name=name)} {int(worst(statuses))}"
        for name, statuses in by_name.items()
    ]
    lines += [
        "# HELP cometmq_check_value The figure that was checked.",
        "# TYPE cometmq_check_value gauge",
    ]
    lines += [
        f"cometmq_check_value{_labels(check=check, name=it.name, figure=it.figure)} {it.value:g}"
        for it in items
        if it.value is not None
    ]
    return "\n".join(lines) + "\n"


def _labels(**values: str) -> str:
    signs = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n"}
    pairs = ",".join(f'{name}="{visible(text).translate(signs)}"' for name, text in values.items())
    return f"{{{pairs}}}"


FORMS: Final[Mapping[str, Callable[[str, Sequence[Item]], str]]] = {
    "text": as_text,
    "json": as_json,
    "nagios": as_nagios,
    "prometheus": as_prometheus,
}
