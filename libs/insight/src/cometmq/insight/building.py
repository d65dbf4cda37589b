# SPDX-License-Identifier: Apache-2.0
"""Builds a snapshot from the answers of all brokers (pure).

The sums over 1,000 topics and 2,000 groups take some ten milliseconds, because the loops work on
plain dictionaries, and create only one struct per row.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, Final

import msgspec

from cometmq.client.admin.figures import BrokerFigures, read_figures
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.insight.asking import BrokerAnswers, MasterAnswers, Queues
from cometmq.insight.consumer_groups import Parts, build_groups, kept_s
from cometmq.insight.history import RATE_UNKNOWN, History, Place, Sample
from cometmq.insight.model import (
    Broker,
    BrokerState,
    DelayLevel,
    Disk,
    Group,
    HalfMessages,
    Memory,
    MemoryPart,
    Producer,
    Refusal,
    Since,
    Snapshot,
    Topic,
    TopicKind,
    Unknown,
    Unreachable,
    is_silence,
    known,
)
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.integers import whole
from cometmq.remoting.names import (
    CHECK_GROUP,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_topic,
    reply_topic,
)
from cometmq.remoting.progress import unread

KINDS: Final = ("topics", "groups", "offsets", "delays", "producers")
"""The fields of `MasterAnswers` that each master is asked for."""
NOBODY: Final = Unknown("no master answers")
FORECAST_S_MAX: Final = 365 * 86_400.0
"""No time until full is given for a disk that would last longer than a year."""
STILL_MS: Final = 30_000
"""A group whose members have committed nothing for this time counts as not reading; members commit
every 5 s.
"""
_SIZE: Final = re.compile(r"\b([0-9]{1,15}(?:\.[0-9]{1,15})?) (B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)")
_UNITS: Final = {unit: 1 << (10 * place) for place, unit in enumerate("BKMGT")}


Outcome = tuple[Place, BrokerAnswers | Unreachable]


def build(
    namesrv: str, outcomes: Sequence[Outcome], history: History, *, now_ms: int, took_ms: int
) -> Snapshot:
    """Return the snapshot, and record its counters in the history."""
    masters: list[tuple[str, MasterAnswers]] = []
    for place, outcome in outcomes:
        if not isinstance(outcome, Unreachable) and outcome.master is not None:
            masters.append((place.name, outcome.master))
    absent = sorted({it.name for it, _ in outcomes} - {name for name, _ in masters})
    disagreements = {
        name: [text] for _, answers in masters for name, text in answers.disagreements.items()
    }
    kept = {
        place.name: None if isinstance(it.settings, Unknown) else kept_s(it.settings)
        for place, it in outcomes
        if not isinstance(it, Unreachable) and it.master is not None
    }
    parts = Parts(masters, absent, history.earlier(now_ms), now_ms, disagreements, kept)
    groups, topics = _told(masters, "offsets"), _told(masters, "topics")
    if not isinstance(groups, Unknown):
        groups = build_groups(parts)
    if not isinstance(topics, Unknown):
        topics = _topics(parts, groups, _reserved(it for it, _ in outcomes))
    _note(history, topics, groups, now_ms)
    if not isinstance(groups, Unknown):
        groups = [_with_begins(it, history, now_ms) for it in groups]
    return Snapshot(
        namesrv=namesrv,
        taken_ms=now_ms,
        took_ms=took_ms,
        brokers=_brokers(outcomes, history, now_ms),
        topics=topics,
        groups=groups,
        producers=_producers(masters),
        half_messages=_half_messages(masters),
        delayed=_delayed(outcomes, masters),
        refusals=_refusals(masters),
        habits=[(broker, it) for broker, answers in masters for it in answers.habits],
        notes=_notes(outcomes),
        incomplete={name: text for name, it in masters if (text := _missing(it))},
    )


def _told(masters: Sequence[tuple[str, MasterAnswers]], kind: str) -> list[Any] | Unknown:
    """Return the names of the masters that have answered a question, with the answers; the reason
    of one if none has.
    """
    answers = [(name, getattr(it, kind)) for name, it in masters]
    found = [it for it in answers if not isinstance(it[1], Unknown)]
    reason: Unknown = answers[-1][1] if answers else NOBODY
    return found or reason


def _missing(answers: MasterAnswers) -> str:
    """Return the questions that a master has not answered, as text; empty if there are none."""
    asked = {kind: getattr(answers, kind) for kind in KINDS} | {"queues": answers.untold}
    silences = {kind: it for kind, it in asked.items() if is_silence(it)}
    if not silences:
        return ""
    return f"about {', '.join(silences)}: {next(iter(silences.values())).reason}"


# -- brokers --------------------------------------------------------------------------------------


def _brokers(outcomes: Sequence[Outcome], history: History, now_ms: int) -> list[Broker]:
    figures = {
        (place.name, place.broker_id): read_figures(outcome.runtime)
        for place, outcome in outcomes
        if not isinstance(outcome, Unreachable)
    }
    found = []
    for place, outcome in outcomes:
        state: BrokerState | Unreachable
        if isinstance(outcome, Unreachable):
            state = outcome
        else:
            own = figures[place.name, place.broker_id]
            settings = outcome.settings
            state = BrokerState(
                own,
                _disk(place, own, outcome.runtime, history, now_ms),
                _behind(place, own, figures.get((place.name, MASTER_ID))),
                _whole(outcome.runtime.get("groupEpoch")),
                outcome.runtime,
                None if isinstance(settings, Unknown) else settings,
                None if own.slow_share is None else 1 - own.slow_share,
                memory_of(outcome.runtime),
            )
        found.append(Broker(place.cluster, place.name, place.broker_id, place.address, state))
    return found


def _behind(place: Place, own: BrokerFigures, master: BrokerFigures | None) -> int | Unknown | None:
    if place.broker_id == MASTER_ID:
        return None
    if master is None:
        return Unknown("the master does not answer")
    return max(0, master.log_max_offset - own.log_max_offset)


def _disk(
    place: Place, own: BrokerFigures, facts: Mapping[str, str], history: History, now_ms: int
) -> Disk | Unknown:
    ratio = own.commit_log_disk_ratio
    if ratio is None:
        return Unknown("the broker does not report its disk")
    sizes = [_bytes(it) for it in _SIZE.finditer(facts.get("commitLogDirCapacity", ""))]
    total, free = (sizes[0], sizes[1]) if len(sizes) == 2 else (None, None)
    log_bytes = own.log_max_offset - (_whole(facts.get("commitLogMinOffset")) or 0)
    growth = history.growth_per_s(place.address, log_bytes, now_ms)
    history.note_log(place.address, log_bytes, now_ms)
    full_in_s = free / growth if free is not None and growth is not None and growth > 0 else None
    if full_in_s is not None and full_in_s > FORECAST_S_MAX:
        full_in_s = None
    return Disk(ratio, total, free, full_in_s)


def _bytes(size: re.Match[str]) -> int:
    return int(float(size[1]) * _UNITS[size[2][0]])


def _whole(text: str | None) -> int | None:
    return whole(text or "")


# -- topics ---------------------------------------------------------------------------------------


def kind_of(topic: str) -> TopicKind:
    """Return the kind of a topic, by its name."""
    if topic.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return TopicKind.DEAD_LETTERS
    return TopicKind.SYSTEM if is_system_topic(topic) else TopicKind.NORMAL


Home = tuple[str, TopicConfig, Queues | Unknown]
"""A broker that has a topic, its settings there, and its queues, or why they are not known."""


def _reserved(places: Iterable[Place]) -> frozenset[str]:
    """Return the topics that brokers create for themselves: their names, their clusters' names,
    and the topics for replies."""
    return frozenset(
        name for it in places for name in (it.name, it.cluster, reply_topic(it.cluster))
    )


def _topics(
    parts: Parts, groups: Sequence[Group] | Unknown, reserved: Collection[str]
) -> list[Topic]:
    readers: dict[str, list[str]] = defaultdict(list)
    for group in known(groups):
        read = {it.topic for it in group.topics} | {it.topic for it in group.subscriptions}
        for topic in read:
            readers[topic].append(group.name)
    homes: dict[str, list[Home]] = {}
    for broker, answers in parts.masters:
        if not isinstance(answers.topics, Unknown):
            for name, config in answers.topics.items():
                queues = answers.queues.get(name, answers.untold)
                homes.setdefault(name, []).append((broker, config, queues))
    return [
        _topic(
            parts,
            name,
            TopicKind.SYSTEM if name in reserved else kind_of(name),
            homes[name],
            sorted(readers.get(name, ())),
        )
        for name in sorted(homes)
    ]


def _topic(
    parts: Parts, name: str, kind: TopicKind, homes: Sequence[Home], groups: Sequence[str]
) -> Topic:
    end, messages, last_ms = 0, 0, 0
    untold: Unknown | None = None
    for _, _, queues in homes:
        if isinstance(queues, Unknown):
            untold = queues
            continue
        for queue in queues.values():
            end += queue.end
            messages += max(0, queue.end - queue.first)
            last_ms = max(last_ms, queue.last_write_ms)
    rate: float | Unknown = RATE_UNKNOWN
    earlier = parts.earlier
    if earlier is not None and name in earlier.ends:
        rate = max(0, end - earlier.ends[name]) * 1_000 / (parts.now_ms - earlier.taken_ms)
    config = homes[0][1]
    perms = {broker: it.perm for broker, it, _ in homes}
    return Topic(
        name,
        kind,
        reduce(and_, perms.values()),
        sum(it.read_queue_nums for _, it, _ in homes),
        sum(it.write_queue_nums for _, it, _ in homes),
        [broker for broker, _, _ in homes],
        messages if untold is None else untold,
        end if untold is None else untold,
        rate if untold is None else untold,
        untold or _last_write(last_ms, messages),
        groups,
        config.order,
        perms,
    )


def _last_write(last_ms: int, messages: int) -> int | Unknown | None:
    if last_ms:
        return last_ms
    return Unknown("the broker does not report it here") if messages else None


# -- what is counted per broker -------------------------------------------------------------------


def _producers(masters: Sequence[tuple[str, MasterAnswers]]) -> list[Producer] | Unknown:
    told = _told(masters, "producers")
    if isinstance(told, Unknown):
        return told
    found: dict[tuple[str, str, str], Producer] = {}
    for broker, groups in told:
        for group, it in ((group, it) for group, its in groups.items() for it in its):
            key = (group, it.client_id, it.remote_ip)
            brokers = [*(found[key].brokers if key in found else ()), broker]
            found[key] = Producer(*key, it.language, it.version, brokers)
    return [found[key] for key in sorted(found)]


def _half_messages(masters: Sequence[tuple[str, MasterAnswers]]) -> list[HalfMessages] | Unknown:
    if not masters:
        return NOBODY
    found = []
    for broker, answers in masters:
        queues = answers.queues.get(HALF_TOPIC, {})
        offsets = {} if isinstance(answers.offsets, Unknown) else answers.offsets
        examined = offsets.get(f"{HALF_TOPIC}@{CHECK_GROUP}", {})
        waiting = sum(unread(examined.get(at), it.first, it.end) for at, it in queues.items())
        if queues:
            found.append(HalfMessages(broker, waiting))
    return found


def _refusals(masters: Sequence[tuple[str, MasterAnswers]]) -> list[Refusal] | Unknown:
    told = _told(masters, "refused")
    if isinstance(told, Unknown):
        return told
    found = [
        Refusal(broker=broker, **msgspec.structs.asdict(it)) for broker, its in told for it in its
    ]
    return sorted(found, key=lambda it: -it.last_ms)


def _delayed(
    outcomes: Sequence[Outcome], masters: Sequence[tuple[str, MasterAnswers]]
) -> list[DelayLevel] | Unknown:
    told = _told(masters, "delays")
    if isinstance(told, Unknown):
        return told
    delays, found = dict(told), []
    for place, it in outcomes:
        if isinstance(it, Unreachable) or it.master is None or place.name not in delays:
            continue
        settings = {} if isinstance(it.settings, Unknown) else it.settings
        texts = settings.get("messageDelayLevel", "").split()
        for at, queue in sorted(it.master.queues.get(SCHEDULE_TOPIC, {}).items()):
            waiting = delays[place.name].waiting(at + 1, queue.first, queue.end)
            if waiting:
                text = texts[at] if 0 <= at < len(texts) else ""
                found.append(DelayLevel(place.name, at + 1, waiting, text))
    return found


def _notes(outcomes: Sequence[Outcome]) -> list[str]:
    notes = []
    for place, outcome in outcomes:
        if isinstance(outcome, Unreachable):
            continue
        if isinstance(outcome.settings, Unknown):
            notes.append(f"{place.name} does not tell its settings: {outcome.settings.reason}")
        if outcome.master is None:
            continue
        for kind in KINDS:
            answer = getattr(outcome.master, kind)
            if isinstance(answer, Unknown):
                notes.append(f"{place.name} does not tell its {kind}: {answer.reason}")
    return notes


def _with_begins(group: Group, history: History, now_ms: int) -> Group:
    """Return the group with the times since when it reads nothing and has dead letters."""
    dead_since = group.dead_since or history.dead_letters.get(group.name)
    still_since = _still_since(group, history, now_ms)
    if dead_since is group.dead_since and still_since is None:
        return group
    return msgspec.structs.replace(group, dead_since=dead_since, still_since=still_since)


def _still_since(group: Group, history: History, now_ms: int) -> Since | None:
    seen = history.progress.get(group.name)
    if seen is None or group.missing_brokers or isinstance(group.lag, Unknown):
        return None
    if group.members and now_ms - seen.still_since.ms < STILL_MS:
        return None
    if group.has_read_nothing and not isinstance(group.behind_s, Unknown):
        return Since(round(now_ms - group.behind_s * 1_000), is_bound=group.lost > 0)
    return seen.still_since


def _note(
    history: History,
    topics: Iterable[Topic] | Unknown,
    groups: Iterable[Group] | Unknown,
    now_ms: int,
) -> None:
    if isinstance(topics, Unknown) or isinstance(groups, Unknown):
        return
    ends = {it.name: it.end for it in topics if isinstance(it.end, int)}
    consumed: dict[str, int] = {}
    for group in groups:
        consumed[group.name] = sum(it.committed for it in group.topics)
        if isinstance(group.lag, int) and not group.missing_brokers:
            history.note_progress(group.name, consumed[group.name], group.lag, now_ms)
        if isinstance(group.dead_left, int):
            history.note_dead_letters(group.name, group.dead_left, now_ms)
    history.note(Sample(now_ms, ends, consumed))


# -- memory -----------------------------------------------------------------------------------

_MEMORY: Final = "memory"
_MEMORY_TITLES: Final = {
    "program": "programs and libraries",
    "pullCache": "records kept for pulls",
    "unread": "answers that clients have not read",
}
_MEMORY_REST: Final = "tables, connections and interpreter"


def memory_of(facts: Mapping[str, str]) -> Memory | Unknown:
    """Return the memory of a broker and its parts, in bytes.

    The sum of the parts never exceeds the whole: a part that does not fit beside those before it is
    left out.
    """
    told = _sizes(facts.get(_MEMORY, ""))
    resident = told.get("resident")
    if not resident:
        return Unknown("this broker does not report its memory")
    parts: list[MemoryPart] = []
    rest = resident
    for name, title in _MEMORY_TITLES.items():
        size = told.get(name, 0)
        if 0 < size <= rest:
            parts.append(MemoryPart(title, size))
            rest -= size
    parts.append(MemoryPart(_MEMORY_REST, rest))
    return Memory(resident, _by_size(parts), told.get("peak"), told.get("limit"))


def _by_size(parts: Sequence[MemoryPart]) -> list[MemoryPart]:
    return sorted(parts, key=lambda it: -it.size)


def _sizes(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text[:1_000].split(","))
    return {name: number for name, _, size in pairs if (number := whole(size)) is not None}
