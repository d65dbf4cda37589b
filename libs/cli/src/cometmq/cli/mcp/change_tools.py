# SPDX-License-Identifier: Apache-2.0
"""Tools that change something: offsets, dead letters, transactions and topics."""

from typing import Annotated, Any, Final, Literal

import msgspec

from cometmq.cli.access import check_namespace
from cometmq.cli.mcp.changing import ChangeArguments, Confirm, Plan, changing
from cometmq.cli.mcp.message_tools import Selection, choice
from cometmq.cli.mcp.tool import Name, Risk, Session, Text, missing, said
from cometmq.cli.verbs.topic_changes import (
    Change,
    configs_at,
    cut_off_text,
    hidden_queues,
    newly_unread,
)
from cometmq.cli.verbs.topics import PERMISSIONS, QUEUES_DEFAULT
from cometmq.client.admin import END
from cometmq.client.admin.broker_transactions import HalfState
from cometmq.client.admin.dead_letters import running_replays
from cometmq.client.admin.groups import check_known
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_topic
from cometmq.insight import times
from cometmq.insight.model import TopicKind, Unknown, known
from cometmq.insight.preview import MEMBERS_MOVE, preview_reset
from cometmq.insight.queue_states import kept_note, offsets_by_group, waiting_counts, waiting_note
from cometmq.insight.replays import Pace, Replay, Replayed, replays_text
from cometmq.insight.transactions import end_undecided, facts_of, find_transaction
from cometmq.insight.words import counted, listed
from cometmq.remoting.bodies.topic_config import QUEUES_MAX, TopicConfig
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import DLQ_REPLAY_GROUP, dead_letter_topic

PLACES: Final = {"first": 0, "last": END}
REPLAYED_MAX: Final = 1_000
"""The most dead letters that one call sends; `cometmq dlq replay` has no such limit."""
SECONDS_MAX: Final = 60
QUEUES_SHOWN: Final = 200
Queues = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX, description="Queues per broker.")]
Rights = Annotated[Literal["rw", "r", "w", "none"], said("What clients may do: send is w.")]


# -- groups ---------------------------------------------------------------------------------------


class Reset(ChangeArguments, frozen=True, kw_only=True):
    """Where a group continues."""

    group: Name
    topic: Name
    to: Annotated[Name, said("first, last, a time (2026-11-20T10:00Z) or an age (90m).")]
    backwards: Annotated[bool, said("Never move a queue forward.")] = False


async def _reset(session: Session, wanted: Reset) -> Plan:
    now_ms = wall_ms()
    at_ms = PLACES.get(wanted.to)
    if at_ms is None:
        at_ms = times.parsed(wanted.to, now_ms=now_ms, words=PLACES)
        if at_ms > now_ms:
            raise InvalidArgument(f"{wanted.to} is in the future; for the end, give last")
    group, topic, is_forced = wanted.group, wanted.topic, not wanted.backwards
    found = await preview_reset(session.admin, group, topic, at_ms, is_forced=is_forced)
    moves = {f"{it.queue.broker_name}:{it.queue.queue_id}": it for it in found.moves}
    shown = list(moves.items())[:QUEUES_SHOWN]

    async def perform() -> str:
        moved = await session.admin.reset_offsets(group, topic, at_ms, is_forced=is_forced)
        return f"the group {group} continues at {wanted.to} in {counted(len(moved), 'queue')}"

    return Plan(
        what=f"move the group {group} in {topic} to {wanted.to}",
        subject=group,
        before={place: it.committed for place, it in shown},
        after={place: it.wanted for place, it in shown},
        consequences=list(MEMBERS_MOVE)
        if found.redelivered is None or found.skipped is None
        else [
            f"{counted(found.redelivered, 'message')} are delivered again",
            f"{counted(found.skipped, 'message')} that the group has not read are skipped",
        ],
        perform=perform,
        refusal=f"no master answers at {listed(found.missing_brokers)}"
        if found.missing_brokers
        else "",
    )


# -- dead letters ---------------------------------------------------------------------------------


class ReplayWanted(Selection, frozen=True, kw_only=True):
    """Which dead letters to send again; empty texts select all."""

    group: Name
    topic: Annotated[Text, said("To this topic, and so to all its groups; empty: the group.")] = ""
    rate: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Messages per second.")] = 50
    from_start: Annotated[bool, said("Include those that were replayed before.")] = False
    confirm: Confirm = False


async def _replay(session: Session, wanted: ReplayWanted) -> Plan:
    admin, group, topic = session.admin, wanted.group, wanted.topic or None
    if await admin.namesrv.route(dead_letter_topic(group)) is None:
        await check_known(admin, group)
        raise ClientError(f"nothing was changed: {group} has no dead letters")
    chosen = choice(wanted, REPLAYED_MAX)
    counting = Replay(group, topic, is_dry=True)
    await counting.run(admin, chosen, Replayed(admin, group, is_ignored=wanted.from_start))
    count, refusal = len(counting.sent), ""
    target = topic or f"the group {group}"
    if not count:
        refusal = "no dead letter is selected that could be sent"
    elif count / wanted.rate > SECONDS_MAX:
        refusal = f"it would take longer than {SECONDS_MAX} s: raise the rate, or select fewer"
    else:
        await admin.check_replay(group, topic=topic)

    async def perform() -> str:
        run = Replay(group, topic, pace=Pace(wanted.rate))
        await run.run(admin, chosen, Replayed(admin, group, is_ignored=wanted.from_start))
        left = f"; {counted(len(run.broken), 'message')} cannot be sent" if run.broken else ""
        return f"{target} got {counted(len(run.sent), 'dead letter')} of {group}{left}"

    facts = {
        "selected": count,
        "broken": len(counting.broken),
        "replayed_before": counting.skipped_count,
    }
    consequences = [
        f"all groups that read {topic} get the messages, not only {group}"
        if topic
        else f"only {group} gets the messages, with the full number of attempts",
        "the messages stay dead letters; one that fails again becomes another",
    ]
    if others := replays_text(group, await running_replays(admin, group)):
        consequences.append(others)
    if count == REPLAYED_MAX:
        consequences.append(f"one call sends at most {REPLAYED_MAX:,}; repeat it for the others")
    return Plan(
        what=f"send {counted(count, 'dead letter')} of {group} again to {target}",
        subject=group,
        before=facts,
        after={"sent_again": count},
        consequences=consequences,
        perform=perform,
        refusal=refusal,
    )


# -- transactions ---------------------------------------------------------------------------------


class Resolve(ChangeArguments, frozen=True, kw_only=True):
    """How to end a transaction in place of its producer."""

    transaction: Annotated[Name, said("BROKER:OFFSET of its half message, or its message id.")]
    outcome: Annotated[Literal["commit", "rollback"], said("Ask the application first.")]


async def _resolve(session: Session, wanted: Resolve) -> Plan:
    name, is_commit = wanted.transaction, wanted.outcome == "commit"
    master, half = await find_transaction(session.admin, name)
    check_namespace(half.topic, name)
    state = await master.state(half)
    facts = facts_of(half, state)
    names = ("transaction", "half", "group", "topic", "open", "state", "stored", "producer")
    before = {it: facts[it] for it in names}

    async def perform() -> str:
        await end_undecided(session.admin, name, commit=is_commit)
        return f"the transaction was {'committed' if is_commit else 'rolled back'}"

    return Plan(
        what=f"{'commit' if is_commit else 'roll back'} the transaction {name} of {half.group}",
        subject=f"{half.broker}:{half.offset}",
        before=before,
        after={**before, "open": False, "state": HalfState.ENDED.value, "ended_by": wanted.outcome},
        consequences=[
            "consumers get the message, although its producer may have rolled back"
            if is_commit
            else "nobody gets the message, although its producer may have committed",
            "it cannot be undone",
        ],
        perform=perform,
        refusal="the transaction has already ended" if state is HalfState.ENDED else "",
    )


# -- topics ---------------------------------------------------------------------------------------


class CreateTopic(ChangeArguments, frozen=True, kw_only=True):
    """A new topic on all brokers."""

    topic: Name
    queues: Queues = QUEUES_DEFAULT
    perm: Rights = "rw"


async def _create_topic(session: Session, wanted: CreateTopic) -> Plan:
    name = wanted.topic
    check_topic(name)
    masters = await session.admin.masters_to_change()
    existing = await configs_at(session.admin, masters, name, lambda it: it.topics())
    old = await offsets_by_group(session.admin, masters.values(), name)
    config = TopicConfig(read_queue_nums=wanted.queues, write_queue_nums=wanted.queues)
    refusal = await session.admin.too_many_queues(name, {}, dict.fromkeys(masters, config))
    if existing:
        refusal = f"the topic {name} exists already: use alter_topic"

    async def perform() -> str:
        made = await session.admin.create_topic(
            name, queue_count=wanted.queues, perm=int(PERMISSIONS[wanted.perm])
        )
        return f"the topic {name} exists now at {listed(made)}"

    consequences = [f"it is created at {listed(sorted(masters))}"]
    if old:
        consequences.append(
            f"groups of an older topic of this name continue at their old offsets, and may skip"
            f" messages: {listed(sorted(old))}"
        )
    return Plan(
        what=f"create the topic {name}",
        subject=name,
        before=None,
        after={"queues": wanted.queues, "perm": wanted.perm, "brokers": sorted(masters)},
        consequences=consequences,
        perform=perform,
        refusal=refusal,
    )


class AlterTopic(ChangeArguments, frozen=True, kw_only=True):
    """What to change of a topic, at every broker that has it; null leaves a setting as it is."""

    topic: Name
    read_queues: Queues | None = None
    write_queues: Queues | None = None
    perm: Rights | None = None


async def _alter_topic(session: Session, wanted: AlterTopic) -> Plan:
    name, admin = wanted.topic, session.admin
    masters = await admin.masters_to_change()
    before = await configs_at(admin, masters, name, lambda it: it.topics())
    if not before:
        raise missing("topic", name)
    perm = None if wanted.perm is None else int(PERMISSIONS[wanted.perm])
    change = Change(wanted.read_queues, wanted.write_queues, perm)
    after = {broker: change.applied_to(config) for broker, config in before.items()}
    refusal = "" if after != before else "the topic is already like this"
    refusal = refusal or await admin.too_many_queues(name, before, after)
    consequences = []
    if hidden := await hidden_queues(masters, before, after):
        consequences.append(f"consumers lose {listed([str(it) for it in hidden])}")
    if unread := newly_unread(before, after):
        text = listed([str(it) for it in unread])
        consequences.append(f"producers send to {text}, which no consumer reads")
    if cut_off := cut_off_text(name, before, after):
        consequences.append(cut_off)

    async def perform() -> str:
        await admin.change_each(
            [masters[it] for it in after],
            lambda it: it.create_topic(after[it.name]),
            f"change the topic {name}",
        )
        return f"the topic {name} is changed at {listed(sorted(after))}"

    return Plan(
        what=f"change the topic {name}",
        subject=name,
        before={broker: _settings(it) for broker, it in before.items()},
        after={broker: _settings(it) for broker, it in after.items()},
        consequences=consequences or ["clients learn of it within 30 s"],
        perform=perform,
        refusal=refusal,
    )


def _settings(config: TopicConfig) -> dict[str, Any]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": ("r" if config.perm & Perm.READ else "") + ("w" if config.perm & Perm.WRITE else "")
        or "none",
    }


class DeleteTopic(ChangeArguments, frozen=True, kw_only=True):
    """The topic to delete."""

    topic: Name


async def _delete_topic(session: Session, wanted: DeleteTopic) -> Plan:
    name, admin = wanted.topic, session.admin
    snapshot = await session.snapshot()
    topic = snapshot.topic(name)
    if topic is None:
        raise missing("topic", name)
    masters = (await admin.masters_to_change()).values()
    groups = sorted(set(await offsets_by_group(admin, masters, name)) - {DLQ_REPLAY_GROUP})
    text = "all" if isinstance(topic.messages, Unknown) else f"{topic.messages:,}"
    consequences = [f"{text} messages can no longer be read; it cannot be undone"]
    readers = [it for it in known(snapshot.groups) if any(o.topic == name for o in it.topics)]
    consequences += [f"{it.name} reads it" for it in readers[:QUEUES_SHOWN]]
    if groups:
        consequences.append(kept_note(name, groups))
    if counts := await waiting_counts(masters):
        consequences.append(waiting_note(name, counts))

    async def perform() -> str:
        await admin.delete_topic(name)
        return f"the topic {name} is deleted"

    return Plan(
        what=f"delete the topic {name} with its messages",
        subject=name,
        before={"brokers": list(topic.brokers), "queues": topic.write_queues, "messages": text},
        after=None,
        consequences=consequences,
        perform=perform,
        refusal="the brokers need this topic themselves" if topic.kind is TopicKind.SYSTEM else "",
    )


TOOLS: Final = (
    changing("reset_group", "Move a consumer group in a topic: messages are delivered again or"
             " skipped.", Risk.MEDIUM, Reset, _reset),
    changing("replay_dead_letters", "Send dead letters of a group again.",
             Risk.MEDIUM, ReplayWanted, _replay),
    changing("resolve_transaction", "Commit or roll back an open transaction in place of its"
             " producer.", Risk.HIGH, Resolve, _resolve),
    changing("create_topic", "Create a topic on all brokers.", Risk.LOW,
             CreateTopic, _create_topic),
    changing("alter_topic", "Change the queues or rights of a topic.", Risk.MEDIUM,
             AlterTopic, _alter_topic),
    changing("delete_topic", "Delete a topic and its messages.", Risk.HIGH,
             DeleteTopic, _delete_topic),
)  # fmt: skip
