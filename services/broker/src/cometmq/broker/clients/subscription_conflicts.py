# SPDX-License-Identifier: Apache-2.0
"""What the members of one group want, to notice when they do not want the same (pure).

A group has one subscription: the broker filters for all of its members by what the newest
heartbeat said, and the members share the queues of a topic that some of them do not consume.
Members that want different things miss messages silently, so somebody must be told.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.command import Peer

TAG: Final = "TAG"
TAG_SEPARATOR: Final = "||"
ALL: Final = "*"
NOTHING: Final = ""
TEXT_CHARS_MAX: Final = 200  # of an expression in the log

Wish: TypeAlias = frozenset[tuple[str, str]]
"""Topics with what is wanted of them, equal for expressions that mean the same."""


class Mismatch(NamedTuple):
    """Two members that want different things of a topic; an empty text is nothing of it."""

    topic: str
    client_id: str
    wants: str
    other_client_id: str
    other_wants: str


class Wishes:
    """Who wants what in one group; members that want nothing yet do not count."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        """Start without members."""
        self._members: dict[Wish, dict[Peer, str]] = {}  # wish -> connection -> client id

    @property
    def count(self) -> int:
        """How many different things the members want."""
        return len(self._members)

    def note(self, peer: Peer, client_id: str, asked: Iterable[SubscriptionData]) -> None:
        """Remember what a member wants now."""
        wish = frozenset((one.topic, _meaning(one)) for one in asked)
        if self._members.get(wish, {}).get(peer) == client_id:
            return
        self.drop(peer)
        if wish:
            self._members.setdefault(wish, {})[peer] = client_id

    def drop(self, peer: Peer) -> None:
        """Forget a member that left."""
        for wish, members in self._members.items():
            if members.pop(peer, None) is not None:
                if not members:
                    del self._members[wish]
                return

    def mismatch(self) -> Mismatch | None:
        """Return two members that want different things, None while all want the same."""
        if len(self._members) < 2:
            return None
        (wish, members), (other, other_members) = list(self._members.items())[:2]
        topic = min(topic for topic, _ in wish ^ other)
        return Mismatch(
            topic,
            next(iter(members.values())),
            dict(wish).get(topic, NOTHING)[:TEXT_CHARS_MAX],
            next(iter(other_members.values())),
            dict(other).get(topic, NOTHING)[:TEXT_CHARS_MAX],
        )


def _meaning(subscription: SubscriptionData) -> str:
    """Return an expression such that order and spaces of tags make no difference."""
    text = subscription.sub_string.strip()
    if (subscription.expression_type or TAG) != TAG:
        return f"{subscription.expression_type} {text}"
    tags = {tag.strip() for tag in text.split(TAG_SEPARATOR)} - {""}
    return f" {TAG_SEPARATOR} ".join(sorted(tags)) or ALL
