# SPDX-License-Identifier: Apache-2.0
"""Turns log events of a long-running client into sentences for users of the command line."""

import re
from collections.abc import Mapping
from typing import Final

from cometmq.cli.outcome import note_damage
from cometmq.cli.say import say

COMPLAINTS_MAX: Final = 100
DAMAGE: Final = frozenset({"message.damaged", "messages.missing"})
UNREADABLE: Final = "message.unreadable"

SENTENCES: Final[Mapping[str, str]] = {
    "broker.unreachable": "broker {peer} does not answer; trying again",
    "consumer.undrained": "messages were still being printed at the end; they are redelivered",
    "group.mixed": "members of the group {group} use different message models, and miss messages",
    "heartbeat.failed": "broker {peer} refuses heartbeats; trying again",
    "locks.lost": "another member of the group {group} has taken over {count} queues",
    "message.late": "message {message_id} was not printed in time and is redelivered",
    "message.unreadable": "message {message_id} at queue offset {queue_offset} of {topic}, queue"
    " {queue_id} of broker {broker}, is unreadable",
    "message.unreturned": "message {message_id} could not be returned to its broker",
    "namesrv.unreachable": "name servers cannot be asked; trying again",
    "offset.given_up": "{count} queues were released before their last offsets were stored",
    "offset.moved": "queue {queue_id} of {topic} has no message at offset {queue_offset};"
    " continuing at {next_offset}",
    "offset.unknown": "the first offset of a queue of {topic} is not known yet; trying again",
    "offset.unsaved": "offsets of the group {group} were not committed; trying again",
    "pull.failed": "queue {queue_id} of {topic} at {broker} cannot be read at offset"
    " {queue_offset}; trying again",
    "queues.undrained": "{count} queues were released while their messages were being printed",
    "rebalance.failed": "the queues of {topic} cannot be assigned yet; trying again",
    "route.unknown": "the topic {topic} is not known yet; trying again",
    "subscription.doubtful": "the filter {expression} of {topic} is probably a mistake",
    "subscription.mismatched": "members of the group {group} have different subscriptions, and miss"
    " messages: {client_id} wants {wants}, {other_client_id} wants {other_wants}",
    "tls.unverified": "the server's certificate is not verified",
    "topic.unknown": "no broker has the topic {topic} yet",
    "topic.unreadable": "no broker lets consumers read the topic {topic}",
}
"""The sentence for each event that a command's client may log; other events are described by their
name and facts.
"""

_CLASS: Final = re.compile(r"[A-Z]\w+: ")


class _Facts(dict[str, object]):
    def __missing__(self, name: str) -> str:
        return "?"


def sentence(event: str, facts: Mapping[str, object]) -> str:
    """Return an event as a sentence, with the error and the advice in it."""
    details = {name: fact for name, fact in facts.items() if name != "exc_info"}
    reasons = [_text(details.pop(name)) for name in ("error", "advice") if name in details]
    pattern = SENTENCES.get(event)
    if pattern is None:
        words = event.replace(".", " ").replace("_", " ")
        rest = ", ".join(f"{name.replace('_', ' ')} {fact}" for name, fact in details.items())
        text = f"{words} ({rest})" if rest else words
    else:
        text = pattern.format_map(_Facts(details))
    return ": ".join([text, *reasons])


def _text(reason: object) -> str:
    """Return an error without the name of its class, which means nothing to users."""
    text = str(reason)
    return _CLASS.sub("", text, count=1) if _CLASS.match(text) else text


class Complaints:
    """The log of a long-running client: it prints each problem once, as a readable line.

    Otherwise a consumer that keeps retrying because its broker is down would look idle.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def debug(self, event: str, /, **facts: object) -> None:
        """Drop the event."""

    def info(self, event: str, /, **facts: object) -> None:
        """Drop the event."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless its cause has been printed before."""
        text = sentence(event, facts)
        # Many queues and requests may report the same cause.
        trouble = _text(facts["error"]) if "error" in facts else text
        if trouble not in self._said and len(self._said) < COMPLAINTS_MAX:
            self._said.add(trouble)
            say(f"cometmq: {text}", err=True)

    def error(self, event: str, /, **facts: object) -> None:
        """Print the event, unless its cause has been printed before.

        Damaged messages make the command end with exit status 1.
        """
        if event in DAMAGE:
            note_damage(str(facts.get("error", event)))
        elif event != UNREADABLE:
            self.warning(event, **facts)
            return
        elif "message_id" in facts:
            note_damage(sentence(event, facts))
        if "suppressed_count" in facts:  # by the client, which limits its events
            count = facts["suppressed_count"]
            note_damage(f"{count} more damaged or unreadable messages are not named")
