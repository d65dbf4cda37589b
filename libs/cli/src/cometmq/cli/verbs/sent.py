# SPDX-License-Identifier: Apache-2.0
"""The outcome of `cometmq produce`, and how it is printed."""

from contextlib import suppress
from importlib import import_module
from typing import Final

import msgspec

from cometmq.cli.connecting import with_access
from cometmq.cli.output import (
    Cell,
    as_objects,
    print_errors,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.streams import OutputClosed, OutputFailed
from cometmq.client import ClientOptions, ProducerOptions, SendResult
from cometmq.client.admin import AdminClient
from cometmq.client.message import SendStatus
from cometmq.insight.words import counted
from cometmq.remoting.errors import CometError

RESULTS_MAX: Final = 20
"""Up to this many results are listed; if there are more, only the count is shown."""

_DOUBTS: Final = {
    "FLUSH_DISK_TIMEOUT": "its disk had not confirmed them when it answered: look at its log",
    "FLUSH_SLAVE_TIMEOUT": "no slave had confirmed a second copy when it answered: cometmq cluster"
    " shows how far the slaves are behind",
    "SLAVE_NOT_AVAILABLE": "no slave was close enough for a second copy when it answered: cometmq"
    " cluster shows the slaves",
}
"""The guarantee that a message lacks, for each status other than SEND_OK."""
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Sent(msgspec.Struct):
    """What one run of a sending command has stored and skipped."""

    count: int = 0
    skipped_count: int = 0
    """The number of empty lines, which are skipped because RocketMQ allows no empty bodies."""
    unconfirmed: dict[str, int] = {}
    """The number of messages by status other than SEND_OK: stored, but less safely than requested.
    """
    stripped_count: int = 0
    """The number of lines that ended in CR LF; the CR is not sent, either."""
    new_topic: str = ""
    """The topic, if no broker had it before the run."""
    own_topic: str = ""
    """The topic, if a broker has its name, and so created it for tests of itself."""
    uncertain_count: int = 0
    """Messages that failed, but that an unanswered attempt may have stored."""
    repeated_count: int = 0
    """Stored messages of which an unanswered attempt may have stored another copy."""
    results: list[SendResult] = []
    """The results of the first `RESULTS_MAX` messages."""
    levels: list[int] = []
    """The delay level of each of these results."""
    is_delayed: bool = False
    due: str = ""
    """The delivery time of all messages, or the delay until then; empty if they have none."""
    delays: list[str] = []
    """The delay of each level, from 1 on."""
    seconds: float = 0.0

    def add(self, result: SendResult, delay_level: int) -> None:
        """Count a stored message; keep the first results for the output."""
        self.count += 1
        self.is_delayed = self.is_delayed or delay_level > 0 or bool(self.due)
        if result.status is not SendStatus.SEND_OK:
            name = result.status.name
            self.unconfirmed[name] = self.unconfirmed.get(name, 0) + 1
        if len(self.results) < RESULTS_MAX:
            self.results.append(result)
            self.levels.append(delay_level)

    def delay_of(self, level: int) -> str | None:
        """Return the delay of a level; brokers replace higher levels by their highest."""
        if self.due:
            return self.due
        return self.delays[min(level, len(self.delays)) - 1] if level else None


async def delay_texts(namesrv: str) -> list[str]:
    """Return the delay of each level from the settings of a broker, by default RocketMQ's."""
    text: str = import_module("cometmq.store.settings").StoreSettings().message_delay_level
    with suppress(CometError):  # only administrators may read settings
        async with AdminClient(namesrv, options=with_access(ClientOptions())) as admin:
            for master in (await admin.masters()).values():
                text = (await master.config()).get("messageDelayLevel") or text
                break
    return text.split()


async def delay_ms_of(namesrv: str, level: int) -> int:
    """Return the delay of a level, in ms; brokers replace higher levels by their highest."""
    texts = await delay_texts(namesrv)
    text = texts[min(level, len(texts)) - 1]
    return int(text[:-1]) * _UNIT_MS[text[-1]]


def report(sent: Sent, *, as_json: bool) -> None:
    """Print the outcome or, if standard output cannot be written, the number of stored messages."""
    try:
        print_sent(sent, as_json=as_json)
    except OutputClosed:
        raise
    except OutputFailed:
        print_errors(failure_notes(sent))
        raise


def print_sent(sent: Sent, *, as_json: bool) -> None:
    """Print the outcome of a run that was not stopped."""
    facts: dict[str, Cell] = {
        "sent": sent.count,
        "seconds": round(sent.seconds, 3),
        "per_second": round(sent.count / sent.seconds) if sent.seconds else 0,
    }
    if sent.is_delayed:
        facts["delay"] = ", ".join(sorted({sent.delay_of(it) or "none" for it in sent.levels}))
    unconfirmed = sum(sent.unconfirmed.values())
    if unconfirmed:
        facts["unconfirmed"] = unconfirmed
    if sent.repeated_count:
        facts["may_be_repeated"] = sent.repeated_count
    if sent.skipped_count:
        facts["empty_lines_skipped"] = sent.skipped_count
    columns, rows = _rows(sent)
    if as_json:
        print_json({**facts, "first_results": as_objects(columns, rows)})
    elif 0 < sent.count <= RESULTS_MAX:
        print_rows(columns, rows, as_json=False)
    else:
        print_facts(facts, as_json=False)
    print_notes([*_line_notes(sent), *_stored_notes(sent)])


def _rows(sent: Sent) -> tuple[list[str], list[list[Cell]]]:
    """Return the first results as a table.

    The position of a delayed message is left out, because it refers to the broker's schedule: the
    message gets its queue and offset when it is delivered.
    """
    columns = ["Message id", "Status", "Broker", "Queue", "Offset"]
    rows: list[list[Cell]] = []
    for result, level in zip(sent.results, sent.levels, strict=True):
        queue = result.queue
        place: list[Cell] = (
            [None, None] if level or sent.due else [queue.queue_id, result.queue_offset]
        )
        row: list[Cell] = [result.message_id, result.status.name, queue.broker_name, *place]
        rows.append([*row, sent.delay_of(level)] if sent.is_delayed else row)
    return columns + ["Delay"] * sent.is_delayed, rows


def _line_notes(sent: Sent) -> list[str]:
    """Return notes on the parts of the input that were not sent."""
    notes: list[str] = []
    if sent.skipped_count:
        verb = "was" if sent.skipped_count == 1 else "were"
        lines = f"{counted(sent.skipped_count, 'empty line')} {verb} not sent"
        notes.append(f"{lines}: brokers store no message without a body")
    if sent.stripped_count:
        verb = "ends" if sent.stripped_count == 1 else "end"
        notes.append(
            f"{counted(sent.stripped_count, 'line')} {verb} in CR LF, which is not sent; for bodies"
            " that end in CR, use --json-lines"
        )
    return notes


def _stored_notes(sent: Sent) -> list[str]:
    """Return notes on the stored messages."""
    return [*_topic_notes(sent), *_unconfirmed_notes(sent), *_repeated_notes(sent)]


def _repeated_notes(sent: Sent) -> list[str]:
    """Return a note on messages that may be stored more than once."""
    if not sent.repeated_count:
        return []
    line = (
        f"{counted(sent.repeated_count, 'message')} may be stored more than once: a broker had not"
        " answered, so each was sent again, with the same message id"
    )
    return [line]


def _unconfirmed_notes(sent: Sent) -> list[str]:
    """Return a warning per status about messages that are stored less safely than requested."""
    return [
        f"{name}: the master has stored {counted(count, 'message')}, but {_DOUBTS[name]} (sending"
        " again would store a message twice)"
        for name, count in sorted(sent.unconfirmed.items())
    ]


def _topic_notes(sent: Sent) -> list[str]:
    """Return a note if the first message created the topic, whose name may be misspelt, or if it is
    a broker's own test topic.
    """
    if sent.own_topic:
        line = (
            f"{sent.own_topic} is the name of a broker, which has a topic of this name for tests of"
            " itself: the messages are stored there, but topic list hides it, and topic create"
            " refuses the name; choose a different name for a topic of your own"
        )
        return [line]
    if not sent.new_topic:
        return []
    line = (
        f"no broker had the topic {sent.new_topic}, so it was created with default settings (at"
        f" most {ProducerOptions().default_topic_queue_nums} queues per broker); to choose them,"
        " create it first: cometmq topic create; if the name is wrong: cometmq topic delete"
        f" {sent.new_topic}"
    )
    return [line]


def failure_notes(sent: Sent, what: str = "error") -> list[str]:
    """Return notes on a run that failed or was stopped: how many messages are, or may be,
    stored.
    """
    notes: list[str] = []
    if sent.count:
        stored = f"{counted(sent.count, 'message')} stored before the {what}"
        notes += [stored, *_stored_notes(sent)]
    notes += _line_notes(sent)
    if sent.uncertain_count:
        most = counted(sent.count + sent.uncertain_count, "message")
        twice = f"{sent.count:,} to {most}" if sent.count else f"up to {most}"
        notes.append(
            f"{counted(sent.uncertain_count, 'message')} may be stored: the result is unknown,"
            " because a broker has not answered; sending the whole input again would store"
            f" {twice} twice"
        )
    return notes
