# SPDX-License-Identifier: Apache-2.0
from cometmq.broker.clients.registered import Registered
from cometmq.broker.limits import LIMITS, REGISTRATIONS, SUBSCRIPTION_BYTES, Room
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.testing import FakePeer
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.runtime.limits import Limits

PEER = FakePeer()


class Accounts:
    """The registrations that heartbeats of several accounts add on one connection."""

    def __init__(self) -> None:
        self.limits = Limits(LIMITS, BrokerSettings, clock_ms=int)
        self.registered = Registered(self.limits)

    def admit(self, account: str, group: str, size: int) -> None:
        call = Call(RequestCode.HEART_BEAT, NoHeader(), peer=PEER)
        room = Room(self.limits, None, call, lambda _: account)
        self.registered.admit(PEER, group, size, room, consumes=True)

    def counted(self, account: str) -> tuple[int, int]:
        registrations, size = (
            self.limits._added.get(limit.name, {}).get(f"the account {account}", 0)
            for limit in (REGISTRATIONS, SUBSCRIPTION_BYTES)
        )
        return registrations, size


def test_each_registration_counts_for_the_account_that_added_it() -> None:
    accounts = Accounts()
    accounts.admit("first", "G", 100)
    accounts.admit("second", "H", 200)
    accounts.admit("second", "G", 150)
    assert (accounts.counted("first"), accounts.counted("second")) == ((1, 150), (1, 200))
    accounts.admit("first", "H", 120)
    assert (accounts.counted("first"), accounts.counted("second")) == ((1, 150), (1, 120))

    accounts.registered.leave(PEER, "H", consumes=True)
    assert (accounts.counted("first"), accounts.counted("second")) == ((1, 150), (0, 0))


def test_a_closed_connection_gives_back_what_each_account_added() -> None:
    accounts = Accounts()
    accounts.admit("first", "G", 100)
    accounts.admit("second", "H", 200)
    accounts.admit("second", "G", 150)

    accounts.registered.drop(PEER)

    assert (accounts.registered.count, accounts.registered.size) == (0, 0)
    assert (accounts.counted("first"), accounts.counted("second")) == ((0, 0), (0, 0))
