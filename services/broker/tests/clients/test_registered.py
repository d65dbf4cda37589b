# SPDX-License-Identifier: Apache-2.0
import tracemalloc

import msgspec
import pytest

from cometmq.broker.clients.registered import Registered, subscriptions_size
from cometmq.broker.limits import LIMITS, REGISTRATIONS, SUBSCRIPTION_BYTES, Room
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.runtime.limits import Limits
from cometmq.testing.broker import FakePeer

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


@pytest.mark.parametrize("tags", [0, 1, 8])
def test_subscriptions_count_with_about_the_memory_that_they_take(tags: int) -> None:
    """Those with short texts counted with a quarter of it, so their limit held four times that."""
    bodies = [encode_json(_tagged(f"topic {number}", tags)) for number in range(1_000)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [msgspec.json.decode(body, type=SubscriptionData) for body in bodies]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 < subscriptions_size(kept) / taken < 1.5


def _tagged(topic: str, count: int) -> SubscriptionData:
    tags = [f"{topic} tag {number}" for number in range(count)]
    return SubscriptionData(topic=topic, sub_string="||".join(tags) or "*", tags_set=tags)
