# SPDX-License-Identifier: Apache-2.0
"""Determines which groups have incomplete figures because brokers did not answer."""

from collections.abc import Iterable, Sequence

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.outcome import MISSING
from cometmq.remoting.names import retry_topic


class AbsentBrokers:
    """The brokers that did not answer a command, and the groups that may be affected.

    A broker affects a group if it is in the route of one of the group's topics. Brokers create the
    group's retry topic when a member connects; if no broker has it, offsets may be anywhere.
    """

    def __init__(self, admin: CommandAdmin) -> None:
        self._admin = admin
        self._places: dict[str, frozenset[str]] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all brokers that have not answered so far."""
        return sorted(self._admin.unanswered)

    async def of(self, group: str, topics: Iterable[str], only: str | None = None) -> list[str]:
        """Return the absent brokers that may have messages or offsets of a group.

        `topics` are the known topics of the group; with `only`, no other topic counts.
        """
        if not self._admin.unanswered:
            return []
        if only is not None:
            places = await self._of_topic(only)
        else:
            places = await self._of_topic(retry_topic(group))
            if not places:
                return self.names
            for topic in topics:
                places |= await self._of_topic(topic)
        return sorted(self._admin.unanswered.keys() & places)

    async def _of_topic(self, topic: str) -> frozenset[str]:
        if topic not in self._places:
            route = await self._admin.namesrv.route(topic)
            found = () if route is None else route.broker_datas
            self._places[topic] = frozenset(it.broker_name for it in found)
        return self._places[topic]


def note_left_out(group: str, error: object) -> None:
    """Record that the figures of a group are missing, and why."""
    MISSING.setdefault(f"group {group}", f"the figures of the group {group} are missing: {error}")


def absence(brokers: Sequence[str]) -> str:
    """Return a clause that names the brokers that have not answered or have no master."""
    return f"{', '.join(brokers)} {'is' if len(brokers) == 1 else 'are'} missing"
