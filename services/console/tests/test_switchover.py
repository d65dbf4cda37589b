# SPDX-License-Identifier: Apache-2.0
"""Switchovers from the console: by obedient members, and in a real group."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from cometmq.client import Message, Producer
from cometmq.client.admin.figures import read_figures
from cometmq.client.settings import ClientOptions
from cometmq.console.app import ConsoleApp
from cometmq.console.login.roles import Role as UserRole
from cometmq.console.login.roles import User
from cometmq.console.settings import ConsoleSettings
from cometmq.control.controlled import Target, elector_mark
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import HandOver, Promote
from cometmq.ha.places.file import FileRecord
from cometmq.ha.record import Record
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.insight.model import Broker, BrokerState, Disk
from cometmq.peers.ha_demo.processes import Group as RealGroup
from cometmq.remoting.errors import AccessDenied, CometError, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.control.obedient import ObedientMember

from .desks import ADMIN, JSON, OPERATOR, FakeAdmin, hidden, snapshot
from .suites import Suite, console

PATH = "/broker/switchover"


def state(**runtime):
    return BrokerState(
        read_figures(runtime),
        Disk(0.1),
        runtime=runtime,
        settings={"switchoverTimeoutMills": "2000"},
    )


def brokers(**runtime):
    copies = {"groupMembers": "0,1,2", "groupInSync": "0,1,2", "groupMinInSync": "2", **runtime}
    return [Broker("c", "orders", n, f"10.0.0.{n}:10911", state(**copies)) for n in range(3)]


class SilentAdmin(FakeAdmin):
    """An admin client whose brokers do not return their settings."""

    def broker(self, address, **_):
        class Silent:
            async def settings(self):
                raise CometError(f"{address} is silent")

        return Silent()


class Members:
    """A group of obedient members, as its elector's settings file describes it."""

    def __init__(self, folder):
        self.record = FileRecord(folder / "orders.json")
        self.members = [ObedientMember(Target("orders", n), self.record) for n in range(3)]
        self.file = folder / "elector.conf"
        self._folder = folder

    async def start(self, stack):
        for member in self.members:
            await member.server.start("127.0.0.1", 0)
            stack.push_async_callback(member.server.stop)
        copies = tuple(member.now.status.copy for member in self.members)
        await self.record.create(
            Record(uid="u", group="orders", epoch=4, holder=copies[0], in_sync=copies, copies=3)
        )
        for member in self.members:
            member.becomes(role=Role.SLAVE, epoch=4, promised=4, standing=Standing.PROVEN)
            member.server.electors.heard(elector_mark("e", 60_000))
        self.members[0].becomes(role=Role.MASTER)
        places = ";".join(f"{n}=127.0.0.1:{it.server.port}" for n, it in enumerate(self.members))
        record = f"file:{self._folder}/orders.json"
        self.file.write_text(f"brokerName=orders\ngroupRecord={record}\ncontrolMembers={places}\n")


@pytest.fixture
async def members(tmp_path):
    async with AsyncExitStack() as stack:
        group = Members(tmp_path)
        await group.start(stack)
        yield group


@pytest.fixture
def site(sites, members):
    site = sites(admin=SilentAdmin(), electorConfig=str(members.file))
    site.snapshot = snapshot(site.clock, brokers=brokers())
    return site


async def test_a_switchover_shows_what_it_does_and_hands_over(site, members):
    members.members[2].becomes(lag_bytes=70_000)

    async def elected(_order):
        await ObedientMember.obey(members.members[0], HandOver(1))
        await members.members[1].obey(Promote(5))

    members.members[0].obey = elected
    await site.log_in()
    page = await site.web.get("/broker?name=orders")
    assert f'href="{PATH}?name=orders"' in page.text
    page = await site.web.get(PATH, params={"name": "orders", "to": "2"})
    assert "broker 2 lacks 68.4 KiB" in page.text
    page = await site.web.get(PATH, params={"name": "orders"})
    for text in (
        "Make broker 1 the master of orders",
        "In sync are the brokers 0, 1, 2; broker 1 lacks nothing.",
        "holds sends back until broker 1 takes them, usually less than half a second, and gives",
        "after 2,000 ms. No send fails.",
        f"cometmq ha switchover -c {members.file}",
    ):
        assert text in page.text
    assert '<option value="0"' not in page.text
    form = {"name": "orders", "csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    answer = await site.web.post(PATH, data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/broker?name=orders")
    found = await members.record.read()
    assert (found.record.holder.ordinal, found.record.epoch) == (1, 5)
    done, begun = await site.audit.newest(2)
    assert (done.action, done.outcome, done.user) == ("group.switchover", "done", "boss")
    assert "Broker 1 is the master of orders now, in epoch 5" in done.text
    assert begun.before == {"master": 0, "epoch": 4, "in sync": [0, 1, 2]}
    answer = await site.web.post(PATH, data=form)
    assert answer.status_code == 409, "the plan was for epoch 4"


async def test_an_operator_may_not_switch_over(site):
    assert (await site.web.get(f"{PATH}?name=orders", headers=OPERATOR)).status_code == 403


async def test_an_account_switches_over_only_if_the_master_takes_it_for_an_administrator(
    site, members, monkeypatch
):
    """The console's role alone lets nobody use the elector's key."""

    class Denying(FakeAdmin):
        def __init__(self, *, options, **_more):
            self.options = options

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_error):
            pass

        async def masters_to_change(self, *, names):
            assert self.options.credentials == SessionCredentials("clerk", "s")
            return dict.fromkeys(names, self)

        async def invoke(self, _code):
            raise AccessDenied("clerk is no administrator")

    async def promoted(_options, credentials, **_more):
        return User(credentials.access_key, UserRole.ADMIN, "account")

    monkeypatch.setattr("cometmq.console.login.routes.account_user", promoted)
    monkeypatch.setattr("cometmq.console.web.carrying.AdminClient", Denying)
    page = await site.web.get("/login")
    form = {"csrf": hidden(page, "csrf"), "access_key": "clerk", "secret_key": "s"}
    assert (await site.web.post("/login", data=form)).status_code == 303
    page = await site.web.get(PATH, params={"name": "orders"})
    form = {"name": "orders", "csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    answer = await site.web.post(PATH, data=form)
    assert (answer.status_code, "clerk is no administrator" in answer.text) == (403, True)
    assert (await members.record.read()).record.epoch == 4


async def test_a_refusal_of_the_master_is_told_and_audited(site, members):
    members.members[0].refusal = OrderRefused(OrderRefusal.NOT_IN_SYNC, "broker 1 did not catch up")
    headers = {**ADMIN, **JSON}
    plan = (await site.web.get(f"{PATH}?name=orders", headers=headers)).json()
    form = {"name": "orders", "mark": plan["plan"]["mark"]}
    answer = await site.web.post(PATH, data=form, headers=headers)
    assert answer.status_code >= 400
    assert "broker 0 did not hand over: broker 1 did not catch up" in answer.text
    (done, _) = await site.audit.newest(2)
    assert done.outcome == "failed"


@pytest.mark.parametrize(
    ("runtime", "text"),
    [
        ({"electorMissing": "true"}, "no elector looks after orders"),
        ({"groupInSync": "0"}, "no other copy of orders is in sync"),
    ],
)
async def test_the_page_says_why_it_offers_no_switchover(site, runtime, text):
    site.snapshot = snapshot(site.clock, brokers=brokers(**runtime))
    page = await site.web.get("/broker?name=orders", headers=ADMIN)
    assert f"No switchover: {text}" in page.text
    assert PATH not in page.text
    page = await site.web.get(f"{PATH}?name=orders", headers=ADMIN)
    assert text in page.text


async def test_a_refused_plan_does_not_offer_the_master(site):
    site.snapshot = snapshot(site.clock, brokers=brokers(groupBrokerId="1"))
    page = await site.web.get(PATH, params={"name": "orders", "to": "7"}, headers=ADMIN)
    assert "settings name no broker 7" in page.text
    assert '<option value="1"' not in page.text
    assert '<option value="2"' in page.text


async def test_a_group_of_rocketmq_4_9_has_no_switchover(site):
    plain = [Broker("c", "old", n, f"10.0.0.{n}:10911", state()) for n in range(2)]
    site.snapshot = snapshot(site.clock, brokers=[*plain, *brokers()])
    page = await site.web.get("/broker?name=old", headers=ADMIN)
    assert "No switchover: old has fixed roles, as in RocketMQ 4.9" in page.text


async def test_a_console_without_the_electors_file_says_how_to_switch_over(sites, members):
    site = sites(admin=SilentAdmin())
    site.snapshot = snapshot(site.clock, brokers=brokers())
    page = await site.web.get("/broker?name=orders", headers=ADMIN)
    assert "set electorConfig to the settings file of its elector" in page.text
    site = sites(admin=SilentAdmin(), electorConfig=str(members.file))
    renamed = [Broker("c", "other", it.broker_id, it.address, it.state) for it in brokers()]
    site.snapshot = snapshot(site.clock, brokers=renamed)
    page = await site.web.get("/broker?name=other", headers=ADMIN)
    assert "electorConfig describes orders, not other" in page.text


def test_a_wrong_electors_file_is_refused_at_the_start(tmp_path):
    file = tmp_path / "elector.conf"
    file.write_text("brokerName=orders\n")
    given = {"namesrvAddr": "n:1", "electorConfig": str(file), "listenPort": "0"}
    loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    with pytest.raises(SettingsError, match="controlMembers must be set"):
        ConsoleApp(loaded, log=NO_LOG, clock=SystemClock()).check()


async def test_a_real_group_switches_over_without_a_failed_send(tmp_path):
    async with AsyncExitStack() as stack:
        group = RealGroup(tmp_path)
        stack.push_async_callback(group.stop)
        await group.start()
        status = await group.status()
        before = status["master"]
        suite = Suite(group.namesrv, "", ClientOptions(namesrv=group.namesrv))
        given: Any = {
            "accessKey": "",
            "secretKey": "",
            "electorConfig": str(tmp_path / "elector.conf"),
        }
        desk = await console(suite, tmp_path / "console", stack, **given)
        headers = {"authorization": f"Bearer {desk.token}", **JSON}
        await desk.admin.create_topic("Switched", queue_count=1)
        plan = (await desk.web.get(f"{PATH}?name=orders", headers=headers)).json()
        shown = (await desk.web.get("/brokers", headers=headers)).json()["data"]
        told = {
            int(it["state"]["runtime"]["groupBrokerId"]): (it["address"], it["state"]["epoch"])
            for it in shown
        }
        bearer = {"authorization": headers["authorization"]}
        page = (await desk.web.get(f"{PATH}?name=orders", headers=bearer)).text
        for member in {0, 1, 2} - {before}:
            address, epoch = told[member]
            assert epoch == status["epoch"]
            assert f">broker {member} ({address})</option>" in page
        producer = Producer("switchers", namesrv=group.namesrv)
        await stack.enter_async_context(producer)
        await producer.send(Message("Switched", b"before"))
        form = {"name": "orders", "mark": plan["plan"]["mark"]}
        answer = await desk.web.post(PATH, data=form, headers=headers)
        assert answer.status_code == 200, answer.text
        await producer.send(Message("Switched", b"after"))
        after = await group.until_master_is_not(before)
        assert f"Broker {after['master']} is the master of orders now" in answer.json()["text"]
