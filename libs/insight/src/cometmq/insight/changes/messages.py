# SPDX-License-Identifier: Apache-2.0
"""Changes of messages: replay dead letters, recall delayed ones, end transactions."""

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_messages import HalfMessage, HalfState
from cometmq.client.admin.dead_letters import running_replays
from cometmq.client.admin.removals import find_waiting, recall
from cometmq.client.errors import ClientError, NoRetries, NoRoute, NotWritable
from cometmq.insight import times
from cometmq.insight.changes.change import (
    NAME,
    Cell,
    Change,
    Consequence,
    Done,
    Link,
    Plan,
    Risk,
    arg,
    bad,
    warn,
)
from cometmq.insight.changes.groups import known_group
from cometmq.insight.changes.replays import Choice, Pace, Replay, Replayed, Selection, replays_text
from cometmq.insight.transactions import check_now, end_undecided, facts_of, find_transaction
from cometmq.insight.words import counted
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import dead_letter_topic, retry_topic

REST_IDS_MAX: Final = 20
"""The most ids in the command that sends the rest of a replay."""
BROKEN_SHOWN: Final = 20
"""The most messages that cannot be sent again which a plan names."""
_TEXT: Final = {"max_length": 255}


class ReplayDeadLetters(Selection, Change, frozen=True, kw_only=True):
    """Resend the dead letters of a group to it; asks for confirmation.

    Those that were replayed before are left out (a dry run looks up the first 1,000). Messages keep
    keys, properties and id, and remain dead letters. Unreadable ones, and those that brokers refuse
    for good, are skipped. To change a message first: dlq export.

    \b
    EXAMPLE
      cometmq dlq replay billing --tag paid --rate 100 --dry-run
    """

    name = "dead-letters.replay"
    verb = "dlq replay"
    needs = "operator"
    is_long = True

    count_max: Annotated[
        int | None, arg("At most N messages.", "Messages, at most", flags="--max", ge=1)
    ] = None
    rate: Annotated[
        float | None, arg("At most N a second.", "Messages per second, at most", ge=0.001)
    ] = None
    topic: Annotated[
        str | None,
        arg("Send to this topic instead, to all of its groups.", "Send to this topic instead",
            **_TEXT),
    ] = None  # fmt: skip
    from_start: Annotated[bool, arg("Include messages that were replayed before.")] = False

    @property
    def choice(self) -> Choice:
        """The selection; relative times count from now."""
        return self.chosen(self.count_max)

    def rest(self, left: Collection[str]) -> "ReplayDeadLetters | None":
        """Return the change that sends what an interrupted one has not sent, given the offset
        message ids; None if none selects only these.
        """
        choice = self.choice
        if self.from_start or (self.topic and not choice.is_everything):
            if len(left) > REST_IDS_MAX:
                return None
            ids = tuple(sorted(left))
            topic, rate = self.topic, self.rate
            return ReplayDeadLetters(
                group=self.group, ids=ids, topic=topic, rate=rate, from_start=True
            )
        since, until = (
            None if it is None else times.shown(it) or str(it)
            for it in (choice.begin_ms, choice.end_ms)
        )
        count_max = None if self.count_max is None else len(left)
        return msgspec.structs.replace(self, count_max=count_max, since=since, until=until)

    async def _plan(self, admin: AdminClient) -> Plan:
        group, topic, choice = self.group, self.topic or None, self.choice
        target, is_ignored = topic or f"the group {group}", self.from_start
        counting = Replay(group, topic, is_dry=True)
        run = Replay(group, topic, pace=Pace(self.rate))
        has_any = await admin.namesrv.route(dead_letter_topic(group)) is not None
        others, refusal, remedy = "", "", None
        if has_any:
            refusal, remedy = await why_not_sent(admin, group, topic)
            others = replays_text(group, await running_replays(admin, group))
            await counting.run(admin, choice, Replayed(admin, group, is_ignored=is_ignored))
        else:
            await known_group(admin, group)
        run.wanted = counting.sent
        count, skipped, broken = len(counting.sent), counting.skipped_count, counting.broken

        facts = {"messages": count, "replayed_before": skipped, "broken": len(broken)}

        async def perform(admin: AdminClient) -> Done:
            if has_any:
                await run.run(admin, choice, Replayed(admin, group, is_ignored=is_ignored))
            left = f"; {counted(len(run.broken), 'message')} cannot be sent" if run.broken else ""
            sent = counted(len(run.sent), "message")
            text = f"{'Stopped: sent' if run.is_stopping else 'Sent'} {sent} of {group} to {target}"
            facts: dict[str, Cell] = {
                "group": group, "to": target, "messages": len(run.sent),
                "replayed_before": run.skipped_count, "broken": len(run.broken),
            }  # fmt: skip
            return Done(f"{text}{left}.", facts, not run.broken)

        return Plan(
            f"send {counted(count, 'dead letter')} of {group} again to {target}",
            group,
            facts,
            facts,
            perform,
            [
                warn(f"All groups that read {topic} get the messages, not only {group}.")
                if topic
                else Consequence(f"Only {group} gets the messages, with all attempts anew."),
                Consequence("They stay dead letters; one that fails again becomes another."),
            ],
            [
                *([others] if others else []),
                *(f"{it}: skipped, {why}" for it, why in list(broken.items())[:BROKEN_SHOWN]),
            ],
            refusal,
            remedy,
            "" if count else self._why_none(counting, choice, has_any=has_any),
            preview=facts,
            job=run,
        )

    def _why_none(self, counting: Replay, choice: Choice, *, has_any: bool) -> str:
        """Return why nothing is sent; raise ClientError if ids were given, which must be wrong."""
        group = self.group
        if not has_any:
            return f"{group} has no dead letters"
        if counting.skipped_count:
            return (
                "nothing is left to send: earlier replays have sent"
                f" {counted(counting.skipped_count, 'selected dead letter')} of {group};"
                " to send them again, give --from-start"
            )
        if counting.broken:
            return "no dead letter is selected that could be sent"
        if choice.ids:
            raise no_such_id(group, choice)
        return nothing_matched(group)


async def why_not_sent(
    admin: AdminClient, group: str, topic: str | None
) -> tuple[str, Link | None]:
    """Return why brokers would refuse the dead letters of a group, and a link to the form with the
    remedy; "" and None if they would not.
    """
    try:
        await admin.check_replay(group, topic=topic)
    except NoRetries as error:
        form = f"/group/alter?group={quote(group)}&retries=1"
        return str(error), Link("Give the group retries", form)
    except NotWritable as error:
        name = quote(topic or retry_topic(group))
        return str(error), Link("Change the topic", f"/topic/alter?topic={name}")
    except NoRoute as error:
        form = f"/topic/create?topic={quote(topic or '')}"
        return str(error), Link("Create the topic", form) if topic else None
    except CometError as error:
        return str(error), None
    return "", None


def no_such_id(group: str, choice: Choice) -> ClientError:
    """Return the error for ids that no dead letter has."""
    return ClientError(
        f"no dead letter of {group} has the id {' or '.join(sorted(choice.ids or ()))}, or it is"
        " not among those that the other options select"
    )


def nothing_matched(group: str) -> str:
    """Return the note that a selection is empty."""
    return f"nothing matched: no dead letter of {group} is selected"


# -- delayed messages -----------------------------------------------------------------------------


class RecallMessage(Change, frozen=True, kw_only=True):
    """Recall a delayed message that still waits; it is not delivered.

    Brokers of RocketMQ 4.x cannot recall messages.

    \b
    EXAMPLE
      cometmq message recall 0A000001...A5A10001 -t orders
    """

    name = "delayed.recall"
    verb = "message recall"
    needs = "operator"
    risk = Risk.HIGH

    message_id: Annotated[str, arg("Message id, as produce prints it.", "Message", **NAME)]
    topic: Annotated[str, arg("Topic of the message.", "Topic", flags="-t --topic", **NAME)]

    async def _plan(self, admin: AdminClient) -> Plan:
        topic, message_id = self.topic, self.message_id
        masters = await admin.masters_to_change_of(topic)
        found = await find_waiting(admin, masters, topic, message_id)
        waiting = [it for it in found if not it.is_recalled]
        facts = [it.facts() for it in waiting or found]
        names = sorted({it.master.name for it in waiting})
        rows = [
            {name: it for name, it in one.items() if not name.endswith("_ms")}
            | {"due": times.shown(one["due_ms"] or 0), "stored": times.shown(one["stored_ms"])}
            for one in facts
        ]

        async def perform(admin: AdminClient) -> Done:
            homes = await admin.masters_to_change(None, names)
            what = f"recall the message {message_id}"
            await admin.change_each(homes.values(), lambda it: recall(it, topic, message_id), what)
            return Done(f"The message {message_id} is recalled: nobody gets it.", rows)

        return Plan(
            f"recall the message {message_id}",
            message_id,
            facts,
            {"message_id": message_id, "topic": topic, "recalled": True},
            perform,
            [
                bad("Nobody gets the message. It cannot be undone."),
                Consequence("Brokers of RocketMQ 4.x refuse: they cannot recall messages."),
            ]
            if waiting
            else [],
            refusal=""
            if waiting
            else f"the message {message_id} is recalled already: nobody gets it",
            at=names,
            details=rows[0],
            topic=topic,
            leads_to="/delayed",
        )


# -- transactions ---------------------------------------------------------------------------------

_Transaction = Annotated[
    str,
    arg("Message id, or broker and offset of the half message: broker-a:17.", "Transaction",
        **NAME),
]  # fmt: skip
_ENDED: Final = "the transaction {} has already ended"
_CONSEQUENCES: Final = {
    "commit": "Consumers get the message, although its producer may have rolled back.",
    "rollback": "Nobody gets the message, although its producer may have committed.",
}


async def _found(admin: AdminClient, transaction: str) -> tuple[HalfMessage, HalfState]:
    master, half = await find_transaction(admin, transaction)
    return half, await master.state(half)


def _place(half: HalfMessage) -> str:
    return f"{half.broker}:{half.offset}"


class CheckTransaction(Change, frozen=True, kw_only=True):
    """Check a transaction now, with a connected producer of its group.

    The exit status is 1 if no producer of the group is connected.

    \b
    EXAMPLE
      cometmq txn check broker-a:1234
    """

    name = "transaction.check"
    verb = "txn check"
    risk = Risk.LOW
    needs = "operator"

    transaction: _Transaction

    async def _plan(self, admin: AdminClient) -> Plan:
        name = self.transaction
        half, state = await _found(admin, name)
        before = {"state": state.value, "group": half.group, "topic": half.topic}

        async def perform(admin: AdminClient) -> Done:
            found = await check_now(admin, name)
            text = f"The producer at {found['asked']} was asked; its answer ends the transaction."
            if found["ended"]:
                text = "The transaction has ended meanwhile."
            elif not found["asked"]:
                text = f"No producer of the group {found['group']} is connected: nobody was asked."
            return Done(
                text, {**found, "asked": found["asked"] or None},
                bool(found["ended"] or found["asked"]),
            )  # fmt: skip

        refusal = ""
        if state is HalfState.SET_ASIDE:
            refusal = f"the transaction {name} was set aside, so it is checked no more: resolve it"
        return Plan(
            "ask a connected producer for the outcome",
            _place(half),
            before,
            before,
            perform,
            [Consequence("The producer decides; its answer may come later.")],
            refusal=refusal,
            idle=_ENDED.format(name) if state is HalfState.ENDED else "",
            at=[half.broker],
            topic=half.topic,
            leads_to=f"/transactions/one?id={_place(half)}",
        )


class ResolveTransaction(Change, frozen=True, kw_only=True):
    """End a transaction in place of its producer; shows the message and asks for confirmation.

    Only the application knows the outcome, so check there first.

    \b
    EXAMPLE
      cometmq txn resolve broker-a:1234 --rollback
    """

    name = "transaction.resolve"
    verb = "txn resolve"
    risk = Risk.HIGH
    needs = "operator"

    transaction: _Transaction
    outcome: Annotated[
        Literal["commit", "rollback"],
        arg("Ask the application first.", "Outcome", flags="--commit --rollback",
            labels=("Commit: deliver the message", "Roll back: drop it")),
    ]  # fmt: skip

    async def _plan(self, admin: AdminClient) -> Plan:
        name, outcome = self.transaction, self.outcome
        half, state = await _found(admin, name)
        before: dict[str, Any] = facts_of(half, state)
        after = {
            **before, "open": False, "state": HalfState.ENDED.value, "ended_by": outcome,
        }  # fmt: skip

        async def perform(admin: AdminClient) -> Done:
            await end_undecided(admin, name, commit=outcome == "commit")
            done = "committed" if outcome == "commit" else "rolled back"
            return Done(f"The transaction of {half.group} was {done}.", after)

        verb = "commit" if outcome == "commit" else "roll back"
        shown = ("transaction", "half", "group", "topic", "open", "state", "stored", "producer")
        kept = {it: before[it] for it in shown}
        return Plan(
            f"{verb} the transaction {name} of {half.group}",
            _place(half),
            kept,
            kept | {it: after[it] for it in ("open", "state", "ended_by")},
            perform,
            [bad(_CONSEQUENCES[outcome]), bad("It cannot be undone.")],
            refusal=_ENDED.format(name) if state is HalfState.ENDED else "",
            at=[half.broker],
            details=before,
            topic=half.topic,
            leads_to=f"/transactions/one?id={_place(half)}",
        )


CHANGES: Final = (ReplayDeadLetters, RecallMessage, CheckTransaction, ResolveTransaction)
