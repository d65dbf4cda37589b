# SPDX-License-Identifier: Apache-2.0
"""Says where reads and searches of the store wait for their turns.

An owner's connections share a place for their long searches, one for each connection. The searches
there are finished one after another: if they took turns, all would be refused in the end, and none
answered. This place takes turns with the connections, so short searches do not wait for long ones.
"""

from collections.abc import Callable
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from cometmq.broker.storing.read_deadlines import Request, Search
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.transport.flow.fair_queue import Requester


class Places:
    def __init__(self) -> None:
        self.requester_of: Callable[[Call[Any]], Requester] = _connection_of
        """Returns who takes turns with others while a request waits."""
        self._long: dict[Peer, Search] = {}
        """The last search of each connection that waited in the place of its owner."""

    def of(self, request: Request) -> tuple[Requester, bool]:
        """Return where a request waits, and whether it goes on before those that wait there."""
        requester = self._requester(request)
        if not isinstance(request, Search):
            return requester, False
        if request.is_long and self._is_first_long(request):
            requester = Requester(requester.owner)
        is_first = requester == request.place
        request.place = None if request.may_end_early else requester
        return requester, is_first

    def forget(self, peer: Peer) -> Search | None:
        """Forget a closed connection; return its last search in the place of its owner."""
        return self._long.pop(peer, None)

    def _requester(self, request: Request) -> Requester:
        if request.requester is None:
            assert request.call is not None
            request.requester = self.requester_of(request.call)
        return request.requester

    def _is_first_long(self, search: Search) -> bool:
        """Return whether no earlier long search of the same connection goes on."""
        if search.peer is None:
            return False
        first = self._long.setdefault(search.peer, search)
        if getgeneratorstate(first.lookup) == GEN_CLOSED:
            first = self._long[search.peer] = search
        return first is search


def _connection_of(call: Call[Any]) -> Requester:
    return Requester(call.peer, call.peer)
