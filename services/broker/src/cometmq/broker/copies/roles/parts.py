# SPDX-License-Identifier: Apache-2.0
"""The parts of a broker's membership in its group, which its roles share."""

import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from cometmq.broker.broker import Broker
from cometmq.broker.copies.gate.diversion import Gate
from cometmq.broker.copies.members import MemberAddresses
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.broker.copies.streams.follower import Follower
from cometmq.broker.copies.streams.replica import EpochLog, keep_tail
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.streams.serving import LogServer
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.ha.durable import Files, OsFiles
from cometmq.ha.proof import NewBytes
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.runtime.clock import boottime_ms
from cometmq.runtime.process.system import boot_id
from cometmq.store.log.commit_log import LogView


class Surroundings(NamedTuple):
    """Clocks, randomness and files of the host; a simulator passes its own."""

    files: Files = OsFiles()
    boot_id: Callable[[], str] = boot_id
    boottime_ms: Callable[[], int] = boottime_ms
    new_incarnation: Callable[[], str] = lambda: uuid4().hex
    keep_tail: Callable[[Path, LogView, int, int], Path] = keep_tail
    new_nonce: NewBytes = secrets.token_bytes


HOST = Surroundings()


class Around(NamedTuple):
    """The parts of the program that a membership uses, or closes when the role changes."""

    workers: Workers
    client: RemotingClient
    server: LogServer
    """The replication port."""
    clients: Callable[[], Collection[PeerProtocol]]
    promoted: Callable[[], None]
    """Starts the background work of the handlers of a master."""
    host: Surroundings = HOST

    def close_peers(self) -> None:
        for one in self.clients():
            one.reset()
        self.server.close_slaves()


class Parts(NamedTuple):
    broker: Broker
    around: Around
    member: MemberDriver
    members: MemberAddresses
    epochs: EpochLog
    feed: TableFeed
    follower: Follower
    sender: LogSender
    gate: Gate

    @property
    def host(self) -> Surroundings:
        return self.around.host
