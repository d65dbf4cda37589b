# SPDX-License-Identifier: Apache-2.0
"""Two connections and the bytes between them: the protocol without a network."""

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, cast

from cometmq.remoting.command import Call, Peer
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import Command
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.types import Serialization


class End:
    """One end of a link: its connection, and the calls it has received."""

    def __init__(self, codec: Codec, peer: Peer | None) -> None:
        self.connection = Connection(codec, cast("Peer", peer))
        self.calls: list[Call[Any]] = []

    def receive(self, data: bytes, now_ms: int) -> None:
        """Process bytes as if they came from a socket."""
        self.calls += self.connection.receive(data, now_ms)


class Link:
    """A client's end, a server's end, and a wire that may split the byte stream anywhere."""

    def __init__(
        self,
        commands: Mapping[int, Command] = COMMANDS,
        *,
        serialization: Serialization = Serialization.JSON,
        chunk_sizes: tuple[int, ...] = (65_536,),
        peer: Peer | None = None,
    ) -> None:
        codec = Codec(commands, serialization=serialization)
        self.client = End(codec, peer)
        self.server = End(codec, peer)
        self.now_ms = 0
        self._sizes: Iterator[int] = cycle(chunk_sizes)

    def transfer(self) -> None:
        """Deliver the output of both ends until no output is left."""
        while self.client.connection.out or self.server.connection.out:
            self._carry(self.client, self.server)
            self._carry(self.server, self.client)

    def _carry(self, source: End, target: End) -> None:
        data = bytes(source.connection.take()) if source.connection.out else b""
        while data:
            size = next(self._sizes)
            target.receive(data[:size], self.now_ms)
            data = data[size:]
