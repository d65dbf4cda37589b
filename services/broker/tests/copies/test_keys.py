# SPDX-License-Identifier: Apache-2.0
"""The key of a group of real brokers: introduced, rotated and half-written under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker import timers
from cometmq.broker.copies.control import MemberControl
from cometmq.broker.copies.members import exposure
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import SettingsError
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group

OLD, NEW = "the-first-key-of-the-group-in-this-test", "the-second-key-of-the-group-in-this-test"


class Load:
    """Sends to one broker at a time; every send has to succeed."""

    def __init__(self, group: BrokerGroup, target: int) -> None:
        self._group = group
        self._is_done = False
        self.target = target
        self.sent_count = 0

    async def run(self) -> None:
        while not self._is_done:
            target = self.target
            async with self._group.client(target) as client:
                while target == self.target and not self._is_done:
                    answer = await client.send(b"%d" % self.sent_count)
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                    self.sent_count += 1

    async def more(self, count: int = 50) -> None:
        """Wait until more messages have been sent."""
        wanted = self.sent_count + count
        await self._group.until(lambda: self.sent_count >= wanted)

    def stop(self) -> None:
        self._is_done = True


@asynccontextmanager
async def loaded(group: BrokerGroup) -> AsyncIterator[Load]:
    load = Load(group, 0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await load.more()
        yield load
        await load.more()
        load.stop()


def proven_streams(group: BrokerGroup) -> list[bool]:
    """Return, for each stream of the master, whether it was proven."""
    membership = group.copies(group.open_master)
    return [stream.proven is not None for stream in membership.parts.sender._streams]


def reported_risk(group: BrokerGroup) -> str:
    """Return the risk that the member tells `ha status`."""
    app = group.apps[0]
    assert app.copies is not None
    return MemberControl(app.broker, app.copies, lambda: None).report().risk


async def test_a_key_is_introduced_and_required_without_a_failed_send(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{OLD}\n")
    linger = {"handOverLingerMills": "500"}  # brokers answer what was forwarded to them
    async with running_group(tmp_path / "group", 2, groupKeyFile="", **linger) as group:
        async with loaded(group) as load:
            for required in ("false", "true"):
                group.change_settings(groupKeyFile=str(key_file), groupKeyRequired=required)
                for ordinal in group.group.ordinals:
                    load.target = 1 - ordinal
                    await load.more()
                    await group.stop(ordinal)
                    await load.more()
                    await group.start(ordinal)
                    await group.until_in_sync(0, 1)
        assert proven_streams(group) == [True]
        assert not any(log.named("replica.unfit") for log in group.logs)


async def test_a_changed_key_file_takes_effect_without_a_failed_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "KEYS_INTERVAL_MS", 20)
    key_file = tmp_path / "key"
    key_file.write_text(f"{OLD}\n")
    async with running_group(tmp_path / "group", 2, groupKeyFile=str(key_file)) as group:
        async with loaded(group) as load:
            for text in (f"{OLD}\n{NEW}\n", f"# rotated\n{NEW}\n{OLD}\n", f"{NEW}\n"):
                key_file.write_text(text)
                keys = [line.encode() for line in text.split() if len(line) > 32]
                await group.until(
                    lambda keys=keys: all(  # type: ignore[misc]
                        list(app.broker.admission.member_keys.current()) == keys
                        for app in group.apps.values()
                    )
                )
                await load.more()
            await group.until(lambda: len(proven_streams(group)) == 1)
        assert group.in_sync == [0, 1]
        assert all(len(log.named("group_key.reloaded")) == 3 for log in group.logs)


async def test_a_key_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, 1, groupKeyFile=str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match="missing: No such file"):
        await group.start(0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bindAddress": "0.0.0.0", "groupKeyFile": ""}, "no groupKeyFile"),
        ({"bindAddress": "0.0.0.0", "groupKeyRequired": "false"}, "groupKeyRequired=false"),
        ({"bindAddress": "0.0.0.0"}, ""),
        ({"groupKeyFile": ""}, ""),
    ],
)
async def test_a_group_that_strangers_can_join_says_so_at_every_start(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    group = BrokerGroup(tmp_path, 1, **changes)
    for count in (1, 2):
        await group.start(0)
        assert words in exposure(group.apps[0].broker.settings)
        assert bool(exposure(group.apps[0].broker.settings)) is bool(words)
        assert reported_risk(group) == exposure(group.apps[0].broker.settings)
        found = group.logs[0].named("group.exposed")
        assert [words in str(event["risk"]) for event in found] == [True] * count * bool(words)
        await group.stop(0)
