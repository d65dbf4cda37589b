# SPDX-License-Identifier: Apache-2.0
"""Requests that a slave forwards: signed ones, and sends while the master changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, product
from pathlib import Path

import pytest

from cometmq.ha.orders import HandOver
from cometmq.ha.record import Versioned
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.errors import CommandError
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group
from cometmq.testing.broker.clients import TIMEOUT_MS
from cometmq.testing.ha.memory import MemoryRecord

ACCOUNTS = """\
accounts:
  - accessKey: producer
    secretKey: "12345678"
    defaultTopicPerm: PUB
"""


@pytest.mark.parametrize("secret", ["12345678", "wrong-one"])
async def test_a_signed_send_to_a_slave_is_judged_by_its_signature(
    tmp_path: Path, secret: str
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    async with running_group(tmp_path, 2, aclEnable="true", aclFile=str(accounts)) as group:
        master = group.open_master
        client = RemotingClient(
            ClientSettings(),
            clock_ms=SystemClock().monotonic_ms,
            before=[signing(SessionCredentials("producer", secret))],
        )
        header = SendMessageV2("P", "T", AUTO_CREATE_TOPIC, 4, 0, 0, 0, 0, "")
        try:
            sending = client.invoke(
                group.address(1 - master), RequestCode.SEND_MESSAGE_V2, header, b"signed",
                timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
            if secret == "wrong-one":
                with pytest.raises(CommandError, match="signature"):
                    await sending
            else:
                assert (await sending).code == ResponseCode.SUCCESS
        finally:
            await client.close()
        forwarder = group.copies(1 - master)
        assert forwarder.parts.gate.diversion.forwarded_count == (secret != "wrong-one")


class Senders:
    """Clients that keep sending through all brokers, and fail if any send fails."""

    def __init__(self, group: BrokerGroup) -> None:
        self._group = group
        self._is_ended = False
        self.acknowledged: list[bytes] = []

    async def run(self, ordinal: int, sender: int) -> None:
        async with self._group.client(ordinal) as client:
            for number in count():
                if self._is_ended:
                    return
                body = b"%d %d %d" % (ordinal, sender, number)
                assert (await client.send(body)).code == ResponseCode.SUCCESS
                self.acknowledged.append(body)

    async def progress(self) -> None:
        before = len(self.acknowledged)
        await self._group.until(lambda: len(self.acknowledged) > before + 100)

    def end(self) -> None:
        self._is_ended = True


@asynccontextmanager
async def sending(group: BrokerGroup) -> AsyncIterator[Senders]:
    senders = Senders(group)
    async with asyncio.TaskGroup() as tasks:
        for ordinal, sender in product(group.apps, range(8)):
            tasks.create_task(senders.run(ordinal, sender))
        await senders.progress()
        yield senders
        senders.end()


def establish(group: BrokerGroup) -> None:
    """Make slaves treat their master as one that has been open for a long time."""
    for app in group.apps.values():
        assert app.copies is not None
        diversion = app.copies.parts.gate.diversion
        diversion._forwarding_ms -= diversion.forward_ms_max


async def switch_over(group: BrokerGroup) -> None:
    """Hand over to the next broker, without an elector, and wait until all others follow it."""
    old = group.open_master
    new = (old + 1) % len(group.apps)
    establish(group)
    await group.member(old).obey(HandOver(new))
    await group.until(lambda: group.master == new)
    await group.until(lambda: all(group.status(n).epoch == group.record.epoch for n in group.apps))
    await group.until_in_sync(*group.apps)


async def stored_bodies(group: BrokerGroup) -> list[bytes]:
    async with group.client(group.open_master) as client:
        return [record.body for record in await client.all_messages()]


async def test_no_send_fails_in_switchovers_without_an_elector(tmp_path: Path) -> None:
    """A third broker forwards to the old master until it has read the new record. The old master
    refuses these requests, and those that it held back, because it forwards requests itself.
    """
    async with running_group(tmp_path, 3) as group:
        async with sending(group) as senders:
            for _ in range(6):
                await switch_over(group)
                await senders.progress()
        stored = await stored_bodies(group)
        assert sorted(stored) == sorted(senders.acknowledged), "each is stored exactly once"


async def test_a_refused_slave_reads_the_record_once_for_all_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals are its only news: there is no elector, and its watch shows nothing."""
    async with running_group(tmp_path, 3) as group:
        old = group.open_master
        new, slave = (old + 1) % 3, (old + 2) % 3
        read, reads = MemoryRecord.read, []

        async def read_slowly(port: MemoryRecord) -> Versioned | None:
            if port is group.ports[slave]:
                reads.append(port)
                await asyncio.sleep(0.3)
            return await read(port)

        monkeypatch.setattr(MemoryRecord, "read", read_slowly)
        copies = group.copies(slave)
        monkeypatch.setattr(copies.member.watch, "_look", lambda _found: None)
        establish(group)
        async with group.client(slave) as client, asyncio.TaskGroup() as tasks:
            await group.member(old).obey(HandOver(new))
            for number in range(200):
                tasks.create_task(client.send(b"%d" % number))
        assert group.status(slave).epoch == group.record.epoch
        assert len(reads) <= 2, "a read that a change of the state has overtaken is repeated"
        assert len(await stored_bodies(group)) == 200
