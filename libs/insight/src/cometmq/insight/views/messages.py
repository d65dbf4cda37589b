# SPDX-License-Identifier: Apache-2.0
"""Views of messages that wait: open transactions, delayed messages, dead letters."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import HalfMessage
from cometmq.client.admin.dead_letters import origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt
from cometmq.insight import times
from cometmq.insight.changes.change import arg
from cometmq.insight.changes.groups import known_group
from cometmq.insight.changes.messages import no_such_id, nothing_matched
from cometmq.insight.changes.replays import Replayed, Selection, as_object
from cometmq.insight.delayed import Delayed, delay_ms, delay_texts, levels_at, waiting_at
from cometmq.insight.life import replays_of
from cometmq.insight.model import Unknown
from cometmq.insight.transactions import asked_by_rocketmq, masters_of, open_at
from cometmq.insight.views.view import Column, Facts, Found, View, address
from cometmq.remoting.names import RETRY_PREFIX, dead_letter_topic

_Broker = Annotated[str | None, arg("Only those at this broker.", flags="-b --broker")]
_Topic = Annotated[str | None, arg("Only messages for this topic.", flags="-t --topic")]
_Max = Annotated[int, arg("Maximum number of rows.", flags="--max", ge=1, le=10_000)]


def own_keys(message: MessageExt) -> list[str]:
    """Return the keys that the producer has set."""
    return [key for key in message.keys if key != message.message_id]


# -- transactions ---------------------------------------------------------------------------------


def place_of(half: HalfMessage) -> str:
    """Return the position of a half message, by which it is found fastest."""
    return f"{half.broker}:{half.offset}"


class OpenTransactions(View, frozen=True, kw_only=True):
    """List the open transactions of each broker, oldest first.

    Half is the position of the half message, broker:offset; the other commands find a transaction
    fastest by this position.

    \b
    EXAMPLE
      cometmq txn list
    """

    name = "transactions"
    verb = "txn list"
    sort = "stored"

    broker: _Broker = None
    group: Annotated[
        str | None, arg("Only transactions of this producer group.", flags="-g --group")
    ] = None
    topic: _Topic = None
    until: Annotated[
        str | None, arg("Only messages stored before 2026-11-20T10:00Z, or 5m (ago).")
    ] = None
    count_max: _Max = 100

    columns = (
        Column("transaction", "Transaction", lambda it: it.message.message_id, "id",
               link=lambda it: address("/transactions/one", id=place_of(it))),
        Column("half", "Half", place_of),
        Column("stored", "Stored", lambda it: it.message.store_timestamp, "moment"),
        Column("age", "Open for", lambda it: (wall_ms() - it.message.store_timestamp) / 1_000,
               "duration", is_page_only=True),
        Column("group", "Group", lambda it: it.group, "id"),
        Column("topic", "Topic", lambda it: it.topic, "id"),
        Column("tag", "Tag", lambda it: it.message.tag, is_content=True),
        Column("keys", "Keys", lambda it: own_keys(it.message), is_content=True),
        Column("asked", "Asked", lambda it: asked_by_rocketmq(it) or None, "number",
               help="How often RocketMQ's broker has asked; a txn-checker counts for itself",
               is_page_only=True),
    )  # fmt: skip

    @classmethod
    def topic_of(cls, row: HalfMessage) -> str:
        """Return the topic to which its message goes."""
        return row.topic

    async def ask(self, facts: Facts) -> Found:
        """Return the half messages."""
        end_ms = times.parsed(self.until, now_ms=wall_ms()) if self.until else None
        given = (self.group, self.topic, self.until, self.broker)
        empty = "no open transaction matches" if any(given) else "no transaction is open"
        found: list[HalfMessage] = []
        for master in await masters_of(facts.admin, self.broker):
            async for half in open_at(facts.admin, master):
                is_early = end_ms is None or half.message.store_timestamp < end_ms
                if (
                    is_early
                    and self.group in {None, half.group}
                    and self.topic in {None, half.topic}
                ):
                    found.append(half)
                    if len(found) > self.count_max:
                        note = f"only the first {self.count_max:,} open are shown"
                        return Found(found[:-1], [f"{note}: give --max or --until"])
        return Found(found, (), empty)


# -- delayed messages -----------------------------------------------------------------------------


class DelayLevels(View, frozen=True, kw_only=True):
    """List the delay levels in which messages wait, and how many."""

    name = "delay-levels"
    verb = "message delayed --levels"
    sort = "delay"

    broker: _Broker = None
    level: Annotated[int | None, arg("Only this delay level.", ge=1)] = None

    columns = (
        Column("broker", "Broker", lambda it: it.broker),
        Column("level", "Level", lambda it: it.level, "number",
               link=lambda it: address("/delayed/level", broker=it.broker, level=it.level)),
        Column("delay", "Delay", lambda it: it.delay_text or None),
        Column("waiting", "Waiting", lambda it: it.waiting, "number"),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return the levels."""
        masters = await masters_of(facts.admin, self.broker)
        answers = await facts.admin.ask_each(masters, levels_at)
        rows = [it for _, levels in answers for it in levels if self.level in {None, it.level}]
        return Found(rows, (), "no message waits")


def _stored(it: Delayed) -> str:
    return address("/message", topic=it.topic, id=it.message.offset_message_id)


def _recall(it: Delayed) -> str:
    if it.topic.startswith(RETRY_PREFIX):
        return ""
    return address("/delayed/recall", message_id=it.message.message_id, topic=it.topic)


class DelayedMessages(View, frozen=True, kw_only=True):
    """List the delayed messages that wait, the next due first.

    Failed messages wait here for their next attempt, too: their topic is %RETRY%GROUP. Recall one
    with cometmq message recall.

    \b
    EXAMPLES
      cometmq message delayed --levels
      cometmq message delayed -t orders --max 10
    """

    name = "delayed"
    verb = "message delayed"
    sort = "due"

    broker: _Broker = None
    level: Annotated[int | None, arg("Only messages in this delay level.", ge=1)] = None
    topic: _Topic = None
    count_max: _Max = 100

    columns = (
        Column("due", "Due", lambda it: it.due_ms, "moment", link=_stored),
        Column("stored", "Stored", lambda it: it.message.store_timestamp, "moment"),
        Column("broker", "Broker", lambda it: it.message.queue.broker_name),
        Column("level", "Level", lambda it: it.level, "number"),
        Column("topic", "Topic", lambda it: it.topic),
        Column("tag", "Tag", lambda it: it.message.tag, is_content=True),
        Column("bytes", "Bytes", lambda it: it.size, "size"),
        Column("message_id", "Message id", lambda it: it.message.message_id),
        Column("recall", "Change", lambda it: "Recall …" if _recall(it) else "",
               link=_recall, needs="operator", is_page_only=True),
    )  # fmt: skip

    @classmethod
    def topic_of(cls, row: Delayed) -> str:
        """Return the topic to which the message goes."""
        return row.topic

    async def ask(self, facts: Facts) -> Found:
        """Return the messages, without their bodies."""

        async def at(master: BrokerAdmin) -> tuple[list[Delayed], bool]:
            texts = await delay_texts(master)
            found: list[Delayed] = []
            is_cut = False
            for it in await levels_at(master):
                if self.level in {None, it.level}:
                    delay = delay_ms(texts[it.level - 1] if it.level <= len(texts) else "")
                    queue = await waiting_at(master, it.level, delay, self.count_max, self.topic)
                    found += queue.messages
                    is_cut |= queue.is_cut
            return found, is_cut

        masters = await masters_of(facts.admin, self.broker)
        answers = await facts.admin.ask_each(masters, at)
        found = sorted((it for _, (rows, _) in answers for it in rows), key=lambda it: it.order)
        count = min(len(found), self.count_max)
        is_cut = len(found) > count or any(is_cut for _, (_, is_cut) in answers)
        notes = [f"more messages wait: the next {count:,} are shown"] if is_cut else []
        empty = f"no message{f' for {self.topic}' if self.topic else ''} waits"
        return Found(found[:count], notes, empty)


# -- dead letters ---------------------------------------------------------------------------------

BODY_CHARS: Final = 60
"""The number of characters of a body that a table shows."""


class DeadGroup(NamedTuple):
    """A group with dead letters."""

    name: str
    messages: int
    sent_count: int
    last_ms: int


class DeadLetterGroups(View, frozen=True, kw_only=True):
    """List consumer groups that have dead letters, and how many.

    Last is when the newest dead letter was stored. Sent again is how many of them dlq replay has
    sent without a selection; dlq show says it of each message.

    \b
    EXAMPLE
      cometmq dlq list
    """

    name = "dead-letter-groups"
    verb = "dlq list"
    sort = "-messages"

    group: Annotated[str | None, arg("Only this group; all by default.", is_word=True)] = None

    columns = (
        Column("group", "Group", lambda it: it.name,
               link=lambda it: address("/dead-letters/group", group=it.name)),
        Column("messages", "Messages", lambda it: it.messages, "number"),
        Column("sent_again", "Sent again", lambda it: it.sent_count, "number",
               help="Those that a replay of all has passed; they stay until they expire"),
        Column("last", "Last", lambda it: it.last_ms, "moment",
               help="When the newest dead letter was stored"),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return the groups."""
        admin, rows = facts.admin, []
        groups = await admin.dead_letter_groups()
        if self.group is not None and self.group not in groups:
            await known_group(admin, self.group)
        for name in groups:
            if self.group in {None, name}:
                stats = await admin.topic_stats(dead_letter_topic(name))
                count = sum(it.max_offset - it.min_offset for it in stats.values())
                last_ms = max((it.last_update_timestamp for it in stats.values()), default=0)
                replayed = Replayed(admin, name, is_ignored=False)
                await replayed.load()
                rows.append(DeadGroup(name, count, replayed.sent_count(stats), last_ms))
        who = "no group has" if self.group is None else f"{self.group} has no"
        return Found(rows, (), f"{who} dead letters")


class DeadRow(NamedTuple):
    """A dead letter, and when a replay last sent it to its group again (0 for never)."""

    message: MessageExt
    replayed_ms: int | Unknown

    @property
    def body(self) -> str:
        """The beginning of the body as text on one line."""
        text = " ".join(self.message.body[: 4 * BODY_CHARS].decode(errors="replace").split())
        return text if len(text) <= BODY_CHARS else f"{text[:BODY_CHARS]}..."


class DeadLetters(Selection, View, frozen=True, kw_only=True):
    """Show the dead letters of a group; --json includes whole bodies and properties.

    Sent again says when a replay last sent the message to the group. Only the newest 100 dead
    letters are looked up; the older ones show unknown.

    RocketMQ's protocol carries no error with a dead letter: the consumer's log says why its
    listener failed. `cometmq dlq replay` sends them again.

    \b
    EXAMPLE
      cometmq dlq show billing --since 1d
    """

    name = "dead-letters"
    verb = "dlq show"
    sort = "died"

    count_max: _Max = 100

    columns = (
        Column("died", "Died", lambda it: it.message.store_timestamp, "moment"),
        Column("sent_again", "Sent again",
               lambda it: "unknown" if isinstance(it.replayed_ms, Unknown)
               else times.shown(it.replayed_ms)),
        Column("queue", "Queue",
               lambda it: f"{it.message.queue.broker_name}:{it.message.queue.queue_id}"),
        Column("offset", "Offset", lambda it: it.message.queue_offset, "number"),
        Column("origin_topic", "Origin topic", lambda it: origin_topic(it.message)),
        Column("tag", "Tag", lambda it: it.message.tag),
        Column("keys", "Keys", lambda it: " ".join(it.message.keys)),
        Column("body", "Body", lambda it: it.body),
        Column("deliveries", "Deliveries", lambda it: it.message.reconsume_times, "number"),
        Column("message_id", "Message id", lambda it: it.message.message_id),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return the dead letters, the oldest first."""
        admin, group = facts.admin, self.group
        choice = self.chosen(self.count_max + 1)
        if await admin.namesrv.route(dead_letter_topic(group)) is None:
            await known_group(admin, group)
            return Found((), (), f"{group} has no dead letters")
        letters = [it async for it in choice.read(admin, group)]
        if choice.ids and not letters:
            raise no_such_id(group, choice)
        is_cut = len(letters) > self.count_max
        shown = f"only {self.count_max:,} dead letters are shown"
        notes = [f"{shown}: give --max, --since or --key"] if is_cut else []
        found = sorted(letters[: self.count_max], key=lambda it: it.store_timestamp)
        replayed = await replays_of(admin, group, found)
        rows = [DeadRow(*it) for it in zip(found, replayed, strict=True)]
        return Found(rows, notes, nothing_matched(group))

    @classmethod
    def object_of(cls, row: DeadRow, columns: Sequence[Column[Any]]) -> dict[str, Any]:
        """Return the whole message."""
        return as_object(row.message) | {"replayed_ms": row.replayed_ms}


VIEWS: Final = (OpenTransactions, DelayLevels, DelayedMessages, DeadLetterGroups, DeadLetters)
