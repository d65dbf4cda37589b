# SPDX-License-Identifier: Apache-2.0
"""The consumer groups of a snapshot (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cometmq.client.admin.groups import with_offsets_only
from cometmq.insight.asking import NOT_TOLD, MasterAnswers, Queue
from cometmq.insight.history import RATE_UNKNOWN, Sample
from cometmq.insight.members import is_ours
from cometmq.insight.model import Group, GroupTopic, Member, Since, Subscription, Unknown
from cometmq.insight.words import lasting
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.overview import QueueEnds
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.integers import whole
from cometmq.remoting.names import DLQ_REPLAY_GROUP, dead_letter_topic, retry_topic
from cometmq.remoting.progress import lost, unread

NO_AGE: Final = Unknown("the broker does not report ages; cometmq lag GROUP measures them")
NOT_AGED: Final = Unknown(
    "not measured yet: the broker measures ages while somebody looks", is_new=True
)
NOT_KEPT: Final = Unknown("the broker does not tell how long it keeps messages (fileReservedTime)")
OWN_OFFSETS: Final = Unknown("the members keep their own offsets (BROADCASTING)")
_HOUR_S: Final = 3_600


class Parts(msgspec.Struct, frozen=True):
    """The inputs from which the groups of a snapshot are built."""

    masters: Sequence[tuple[str, MasterAnswers]]
    absent: Sequence[str]
    """Names of brokers whose master does not answer."""
    earlier: Sample | None
    now_ms: int
    disagreements: Mapping[str, Sequence[str]]
    kept_s: Mapping[str, float | None]
    """How long each broker keeps messages, in seconds; None if the broker does not report it."""


class _Sum(msgspec.Struct, gc=False):
    """The progress of a group in a topic, summed over the brokers that were added so far."""

    queues: int = 0
    committed: int = 0
    lag: int = 0
    skips: int = 0
    lost: int = 0
    unread_queues: int = 0
    untold: Unknown | None = None
    """Why the figures of a broker are missing; None if no broker's are."""
    oldest_ms: int = 0
    """When the oldest unread message was stored; 0 if nothing is unread."""
    unaged: Unknown | None = None
    """Why `oldest_ms` is not known; None if it is."""
    lost_ms: float | None = None
    """When the oldest unread message may be deleted; None if nothing is unread."""
    unkept: Unknown | None = None
    """Why `lost_ms` is not known; None if it is."""


def kept_s(settings: Mapping[str, str]) -> float | None:
    """Return how long a broker keeps messages, according to its settings; None if they do not
    contain it.

    If the disk is full, the broker deletes messages earlier.
    """
    hours = whole(settings.get("fileReservedTime", ""))
    return None if hours is None else hours * _HOUR_S


def loss_words(loss_s: float | Unknown | None) -> str:
    """Return the text, in all lists of groups, for the time until unread messages may be
    deleted.
    """
    if loss_s is None:
        return "never"
    return "unknown" if isinstance(loss_s, Unknown) else lasting(loss_s)


def loss_facts(loss_s: float | Unknown | None) -> dict[str, str | float | None]:
    """Return the time to loss in words and in seconds; the seconds are None if it is unknown or
    never.
    """
    known_s = None if isinstance(loss_s, Unknown) else loss_s
    return {"time_to_loss": loss_words(loss_s), "time_to_loss_s": known_s}


def build_groups(parts: Parts) -> list[Group]:
    """Return all groups for which a broker has settings or offsets."""
    configs: dict[str, SubscriptionGroupConfig] = {}
    for _, answers in parts.masters:
        if not isinstance(answers.groups, Unknown):
            configs |= {
                name: config for name, config in answers.groups.items() if name not in configs
            }
    sums = _sums(parts)
    known = with_offsets_only(configs, sums)
    return [_group(parts, name, config, sums.get(name, {})) for name, config in known.items()]


def _sums(parts: Parts) -> dict[str, dict[str, _Sum]]:
    """Return the progress of each group in each topic in which it has offsets."""
    found: dict[str, dict[str, _Sum]] = {}
    for _, answers in parts.masters:
        if isinstance(answers.offsets, Unknown):
            continue
        for key in answers.offsets:
            topic, _, group = key.partition("@")
            if group:
                found.setdefault(group, {}).setdefault(topic, _Sum())
    for group, topics in found.items():
        retries = retry_topic(group)
        if any(retries in answers.queues for _, answers in parts.masters):
            topics.setdefault(retries, _Sum())
        for topic, total in topics.items():
            key = f"{topic}@{group}"
            for broker, answers in parts.masters:
                _add(total, answers, topic, key, parts.kept_s.get(broker))
    return found


def _add(
    total: _Sum, answers: MasterAnswers, topic: str, key: str, broker_kept_s: float | None
) -> None:
    """Add the queues of one broker; a queue without an offset counts as not consumed."""
    queues = answers.queues.get(topic)
    config = None if isinstance(answers.topics, Unknown) else answers.topics.get(topic)
    may_exist = config is not None or isinstance(answers.topics, Unknown)
    if isinstance(answers.offsets, Unknown):
        if queues or may_exist:
            total.untold = answers.offsets
        return
    offsets = answers.offsets.get(key, {})
    if queues is None:
        if offsets and may_exist:  # offsets outlive their topic
            total.untold = answers.untold
        total.committed += sum(offsets.values())
        total.queues += len(offsets)
        return
    before = total.lag
    for queue_id, queue in queues.items():
        _add_queue(total, offsets.get(queue_id), queue, queue_id, config)
    if total.lag > before:
        _add_age(total, answers, key, broker_kept_s)


def _add_age(total: _Sum, answers: MasterAnswers, key: str, broker_kept_s: float | None) -> None:
    if answers.oldest_unread_ms is None:
        total.unaged = NO_AGE
    elif (oldest_ms := answers.oldest_unread_ms.get(key)) is None:
        total.unaged = total.unaged or NOT_AGED
    else:
        total.oldest_ms = min(total.oldest_ms or oldest_ms, oldest_ms)
        if broker_kept_s is None:
            total.unkept = NOT_KEPT
        else:
            lost_ms = oldest_ms + broker_kept_s * 1_000
            total.lost_ms = lost_ms if total.lost_ms is None else min(total.lost_ms, lost_ms)


def _add_queue(
    total: _Sum,
    committed: int | None,
    queue: Queue | QueueEnds,
    queue_id: int,
    config: TopicConfig | None,
) -> None:
    first, end = queue.first, queue.end
    lag = unread(committed, first, end)
    total.queues += 1
    total.committed += committed or 0
    total.lag += lag
    total.lost += lost(committed, first)
    if committed is not None and committed > end:
        total.skips += end - first
    if config is not None and queue_id >= config.read_queue_nums:
        total.unread_queues += lag


def _group(
    parts: Parts,
    name: str,
    config: SubscriptionGroupConfig,
    sums: Mapping[str, _Sum],
) -> Group:
    members, online = _members(parts, name)
    is_broadcast = online is not None and online.message_model == "BROADCASTING"
    topics = [
        GroupTopic(
            topic,
            it.queues,
            it.committed,
            it.untold or it.lag,
            it.untold or _age(it, parts.now_ms),
            it.skips,
            it.lost,
            it.unread_queues,
        )
        for topic, it in sorted(sums.items())
    ]
    own = retry_topic(name)
    lag = OWN_OFFSETS if is_broadcast else _total(it.lag for it in topics)
    dead, dead_sent, dead_since = _dead_letters(parts, dead_letter_topic(name))
    is_complete = isinstance(lag, int) and not parts.absent
    return Group(
        name=name,
        is_system=not is_ours(name),
        retries=config.retry_max_times,
        is_enabled=config.consume_enable,
        members=members,
        model=None if online is None else online.message_model,
        consume_type=None if online is None else online.consume_type,
        subscriptions=_subscriptions(online),
        topics=topics,
        lag=lag,
        behind_s=OWN_OFFSETS if is_broadcast else _oldest(topics),
        out_per_s=_rate(parts, name, topics),
        dead_letters=dead,
        dead_sent=dead_sent,
        dead_since=dead_since,
        has_read_nothing=is_complete and bool(lag) and not any(it.committed for it in topics),
        disagreements=parts.disagreements.get(name, ()),
        retry_backlog=next((it.lag for it in topics if it.topic == own), 0),
        missing_brokers=parts.absent,
        loss_s=OWN_OFFSETS if is_broadcast else _loss(sums.values(), parts.now_ms),
    )


def _age(total: _Sum, now_ms: int) -> float | Unknown:
    if not total.lag:
        return 0.0
    return total.unaged or max(0, now_ms - total.oldest_ms) / 1_000


def _loss(sums: Iterable[_Sum], now_ms: int) -> float | Unknown | None:
    lost_ms: list[float] = []
    for it in sums:
        if missing := it.untold or it.unaged or it.unkept:
            return missing
        if it.lost_ms is not None:
            lost_ms.append(it.lost_ms)
    return max(0.0, min(lost_ms) - now_ms) / 1_000 if lost_ms else None


def _total(lags: Iterable[int | Unknown]) -> int | Unknown:
    total = 0
    for lag in lags:
        if isinstance(lag, Unknown):
            return lag
        total += lag
    return total


def _oldest(topics: Iterable[GroupTopic]) -> float | Unknown:
    oldest = 0.0
    for it in topics:
        if isinstance(it.behind_s, Unknown):
            return it.behind_s
        oldest = max(oldest, it.behind_s)
    return oldest


def _rate(parts: Parts, name: str, topics: Sequence[GroupTopic]) -> float | Unknown:
    earlier = parts.earlier
    if earlier is None or name not in earlier.consumed:
        return RATE_UNKNOWN
    moved = sum(it.committed for it in topics) - earlier.consumed[name]
    return max(0, moved) * 1_000 / (parts.now_ms - earlier.taken_ms)


def _dead_letters(parts: Parts, topic: str) -> tuple[int | Unknown, int, Since | None]:
    """Return how many messages a dead-letter topic has, how many of them a replay of the whole
    topic has sent again, and when the oldest of the others was stored; only a bound if a broker
    does not report its time.
    """
    count, sent, firsts_ms = 0, 0, list[int | None]()
    for _, answers in parts.masters:
        if isinstance(answers.topics, Unknown):
            return answers.topics, 0, None
        if topic not in answers.topics:
            continue
        queues = answers.queues.get(topic)
        if queues is None:
            return answers.untold, 0, None
        key = f"{topic}@{DLQ_REPLAY_GROUP}"
        offsets = {} if isinstance(answers.offsets, Unknown) else answers.offsets.get(key, {})
        here = sum(max(0, it.end - it.first) for it in queues.values())
        sent_here = sum(_passed(offsets.get(at, 0), it) for at, it in queues.items())
        if sent_here < here:
            first_ms = (answers.oldest_unread_ms or {}).get(key)
            firsts_ms.append(first_ms if sent_here else answers.first_dead_ms.get(topic))
        count, sent = count + here, sent + sent_here
    told_ms = [it for it in firsts_ms if it is not None]
    since = Since(min(told_ms), is_bound=len(told_ms) < len(firsts_ms)) if told_ms else None
    return count, sent, since


def _passed(position: int, queue: Queue | QueueEnds) -> int:
    """Return how many messages of a queue come before a replay's position. A position beyond the
    end is ignored: it is from an earlier topic of the same name.
    """
    return max(0, position - queue.first) if position <= queue.end else 0


def _members(
    parts: Parts, name: str
) -> tuple[Sequence[Member] | Unknown, ConsumerConnections | None]:
    found: dict[tuple[str, str], Member] = {}
    online: ConsumerConnections | None = None
    untold: Unknown | None = NOT_TOLD
    for broker, answers in parts.masters:
        if name not in answers.consumers:
            untold = untold and answers.untold
            continue
        untold = None
        connections = answers.consumers[name]
        if connections is None:
            continue
        if online is None:
            online = connections
        for it in connections.connection_set:
            # A client's port differs from broker to broker, so its host identifies it.
            key = (it.client_id, it.client_addr.rpartition(":")[0])
            known = found.get(key)
            if known is not None and broker in known.brokers:
                key = (it.client_id, it.client_addr)  # two clients with one id
                known = None
            brokers = [*(known.brokers if known else ()), broker]
            found[key] = Member(it.client_id, it.client_addr, it.language, it.version, brokers)
    if untold is not None:
        return untold, None
    return [found[key] for key in sorted(found)], online


def _subscriptions(online: ConsumerConnections | None) -> list[Subscription]:
    if online is None:
        return []
    return [
        Subscription(topic, it.sub_string, it.expression_type)
        for topic, it in sorted(online.subscription_table.items())
    ]
