# SPDX-License-Identifier: Apache-2.0
"""The elector as a program: real connections to members, a record in a file, two electors."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.control.controlled import Target
from cometmq.elector.app import ElectorApp
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.places.file import FileRecord
from cometmq.ha.role import Role
from cometmq.remoting.errors import SettingsError
from cometmq.runtime import logging
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.control.obedient import ObedientMember
from cometmq.testing.runtime.pages import get

DEADLINE_S = 60


class Group:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.path = folder / "record" / "orders.json"
        self.path.parent.mkdir()
        self.record = FileRecord(self.path)
        self.members = [
            ObedientMember(Target("orders", ordinal), self.record) for ordinal in range(3)
        ]
        self._stack = stack

    async def start(self):
        for member in self.members:
            await member.server.start("127.0.0.1", 0)
            self._stack.push_async_callback(member.server.stop)

    def settings(self, **changes):
        members = ";".join(
            f"{n}=127.0.0.1:{member.server.port}" for n, member in enumerate(self.members)
        )
        given = {
            "brokerName": "orders",
            "groupRecord": f"file:{self.path}",
            "controlMembers": members,
            "pollIntervalMills": "200",
        }
        return load(ElectorSettings, prefix="NONE", env={}, cli={**given, **changes})

    async def elector(self, **changes):
        admin = AdminHttp()
        app = ElectorApp(
            self.settings(**changes), log=logging.get("elector"), clock=SystemClock(), admin=admin
        )
        await app.start()
        self._stack.push_async_callback(app.stop)
        return app, admin

    async def found(self):
        found = await self.record.read()
        assert found is not None
        return found

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  # states of several parts
                await asyncio.sleep(0.01)

    def masters(self):
        return [n for n, m in enumerate(self.members) if m.now.status.role is Role.MASTER]


@pytest.fixture
async def group(tmp_path):
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, stack)
        await group.start()
        yield group


async def test_two_electors_give_a_group_a_master_and_replace_a_killed_one(group):
    apps = [await group.elector() for _ in range(2)]
    await group.until(lambda: group.masters() == [0])
    await group.until(lambda: all(app.elector.stats.has_master for app, _ in apps))
    found = await group.found()
    copies = [member.now.status.copy for member in group.members]
    await group.record.replace(found, found.record.renewed(copies))

    await group.members[0].server.stop()
    group.members[0].becomes(role=Role.SLAVE, epoch=0)
    await group.until(lambda: group.masters() in ([1], [2]))
    (winner,) = group.masters()
    await group.until(lambda: group.members[3 - winner].now.status.role is Role.SLAVE)
    after = (await group.found()).record
    assert after.epoch == found.record.epoch + 1
    assert after.holder == copies[winner]
    await group.until(lambda: all(app.elector.stats.has_master for app, _ in apps))
    assert sum(app.elector.stats.elections["Gone"] for app, _ in apps) == 1


async def test_a_change_at_a_member_starts_a_round_before_the_interval(group):
    app, _ = await group.elector(pollIntervalMills="60000")
    await group.until(lambda: group.masters() == [0])
    rounds = app.elector.stats.round_count
    group.members[1].becomes(has_lost_master=True)
    await group.until(lambda: app.elector.stats.round_count > rounds)


async def test_metrics_and_readiness_tell_the_state_of_group_and_elector(group):
    app, admin = await group.elector()
    await group.until(lambda: app.elector.stats.has_master)
    text = (await get(admin, "/metrics")).text
    assert 'cometmq_elector_has_master{group="orders"} 1.0' in text
    assert 'cometmq_elector_elections_total{cause="NoRecord",group="orders"} 1.0' in text
    assert 'cometmq_elector_elections_total{cause="Gone",group="orders"} 0.0' in text
    assert 'cometmq_elector_members_answering{group="orders"} 3.0' in text
    assert 'cometmq_elector_blocked{group="orders",reason="NoCandidate"} 0.0' in text
    assert (await get(admin, "/readyz")).status_code == 200

    group.path.write_text("nonsense")
    await group.until(lambda: app.fault() is not None)
    answer = await get(admin, "/readyz")
    assert answer.status_code == 503
    assert str(group.path) in answer.text


async def test_an_elector_that_cannot_work_does_not_start(group, tmp_path):
    (tmp_path / "file").touch()
    for changes, words in (
        (
            {"groupRecord": f"file:{tmp_path}/file/orders.json"},
            "another folder with --group-record",
        ),
        ({"groupRecord": ""}, "groupRecord=: must be file:"),
        ({"controlMembers": "x"}, "controlMembers"),
        (
            {"tls.enable": "true", "tls.client.trustCertPath": "/missing"},
            "^--tls-client-trust-cert-path=/missing: No such file",
        ),
    ):
        with pytest.raises(SettingsError, match=words):
            await group.elector(**changes)
