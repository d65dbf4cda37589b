# SPDX-License-Identifier: Apache-2.0
"""Every page and every kind of change of the console, on clusters of both implementations."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.errors import NoRoute
from cometmq.client.testing import eventually
from cometmq.console.app import ConsoleApp
from cometmq.console.pages import PAGES
from cometmq.console.settings import ConsoleSettings
from cometmq.peers.cluster import Cluster
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ServerError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

pytestmark = pytest.mark.compat

TOPIC, GROUP, MAKERS = "Consoled", "consoled-group", "consoled-makers"
DELAY_LEVEL = 18
"""Two hours: the message waits for as long as the test runs."""


class Desk(NamedTuple):
    """A console of the cluster, as an admin sees it."""

    web: httpx2.AsyncClient
    admin: AdminClient
    broker: str
    is_java: bool

    async def page(self, path: str, **params: Any) -> str:
        """Return a page for a browser."""
        answer = await self.web.get(path, params=params, headers={"accept": "text/html"})
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.text

    async def data(self, path: str, **params: Any) -> Any:
        """Return the data of a page."""
        answer = await self.web.get(path, params=params)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()["data"]

    async def change(self, path: str, *, confirm: str = "", **form: str) -> dict[str, Any]:
        """Make a change, and return its plan."""
        seen = await self.web.get(path, params=form)
        assert seen.status_code == 200, f"{path}: {seen.text}"
        plan: dict[str, Any] = seen.json()["plan"]
        assert not plan["refusal"], plan
        given = {**form, "mark": plan["mark"], "confirm": confirm}
        done = await self.web.post(path, data=given)
        assert done.status_code == 200, f"{path}: {done.text}"
        return plan


@pytest.fixture
async def desk(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Desk]:
    given = {
        "namesrvAddr": cluster.namesrv_addr, "listenPort": "0", "storePathRootDir": str(tmp_path),
    }  # fmt: skip
    loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    async with AsyncExitStack() as stack:
        app = ConsoleApp(loaded, log=NO_LOG, clock=SystemClock())
        await app.start()
        stack.push_async_callback(app.stop)
        token = (tmp_path / "token").read_text().split()[-1]
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        web = httpx2.AsyncClient(base_url=app.url, timeout=60, trust_env=False, headers=headers)
        stack.push_async_callback(web.aclose)
        admin = await stack.enter_async_context(AdminClient(cluster.namesrv_addr))
        (broker,) = await admin.masters()
        runtime = await eventually(lambda: _runtime(admin, broker))
        yield Desk(web, admin, broker, "sendPath" not in runtime)


async def _runtime(admin: AdminClient, broker: str) -> dict[str, str]:
    """Return the broker's runtime info; a Java broker refuses in its first second (an empty
    putTimesList).
    """
    try:
        return await (await admin.masters())[broker].runtime_info()
    except ServerError:
        return {}


async def test_every_page_and_every_kind_of_change(desk: Desk, cluster: Cluster) -> None:
    namesrv = cluster.namesrv_addr
    await desk.change("/topic/create", topic=TOPIC, queues="1", perm="rw")
    await desk.change("/group/create", group=GROUP, retries="0")
    async with AsyncExitStack() as stack:
        producer = Producer(MAKERS, namesrv=namesrv)
        await stack.enter_async_context(producer)
        sent = await producer.send(Message(TOPIC, b'{"order": 1}', tag="paid", keys=("k1",)))
        await producer.send(Message(TOPIC, b"late", delay_level=DELAY_LEVEL))
        await _leave_half(namesrv)
        await _make_dead(namesrv)
        await _check_pages(desk, sent.message_id)
        connections = await desk.data("/connections")
        assert MAKERS in str(connections)
    await _check_changes(desk)
    actions = [it["begun"]["action"] for it in await desk.data("/audit")]
    assert actions == [
        "topic.delete", "group.delete", "broker.setting", "transaction.resolve",
        "dead-letters.replay", "group.alter", "group.reset", "topic.alter", "message.send",
        "group.create", "topic.create",
    ]  # fmt: skip


async def _leave_half(namesrv: str) -> None:
    async def unknown(*_: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    halves = TransactionProducer("consoled-halves", namesrv, execute=unknown, check=unknown)
    async with halves as producer:
        await producer.send_in_transaction(Message(TOPIC, b"half"))


async def _make_dead(namesrv: str) -> None:
    async def fail(_messages: Any) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    options = PushOptions(
        namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0
    )
    member = PushConsumer(GROUP, listener=fail, options=options)
    member.subscribe(TOPIC)
    async with member, AdminClient(namesrv) as admin:

        async def has_died() -> bool:
            try:
                return bool(await admin.topic_stats(f"%DLQ%{GROUP}"))
            except NoRoute:
                return False

        await eventually(has_died)


async def _check_pages(desk: Desk, message_id: str) -> None:
    for page in PAGES:
        if page.menu:
            await desk.page(page.path)
            await desk.data(page.path)
    lists: dict[str, dict[str, Any]] = {
        "/broker": {"name": desk.broker}, "/topic": {"name": TOPIC}, "/group": {"name": GROUP},
        "/message": {"topic": TOPIC, "id": message_id},
        "/dead-letters/group": {"group": GROUP}, "/topic/analysis": {"name": TOPIC},
        "/delayed/level": {"broker": desk.broker, "level": DELAY_LEVEL},
    }  # fmt: skip
    for path, params in lists.items():
        await desk.page(path, **params)
    (broker,) = await desk.data("/brokers")
    assert (broker["name"], broker["state"]["type"]) == (desk.broker, "answers")
    topics = {it["name"]: it for it in await desk.data("/topics")}
    assert topics[TOPIC]["messages"] == 1
    groups = {it["name"]: it for it in await desk.data("/groups")}
    assert (groups[GROUP]["lag"], groups[GROUP]["dead_letters"]) == (0, 1)
    (found,) = await desk.data("/messages", topic=TOPIC, key="k1")
    assert found["message_id"] == message_id
    one = await desk.data("/message", topic=TOPIC, id=message_id)
    assert one["decoded"]["format"] == "json"
    assert [it["happening"] for it in one["life"]["events"]][:2] == ["sent", "stored"]
    (dead,) = await desk.data("/dead-letters/group", group=GROUP)
    assert dead["tag"] == "paid"
    (late,) = [
        it for it in await desk.data("/delayed/level", **lists["/delayed/level"])
        if it["topic"] == TOPIC
    ]  # fmt: skip
    assert late["due"] > late["stored"]
    await eventually(lambda: _halves(desk))
    pushed = await desk.page("/push-back")
    assert ("this broker does not report it" in pushed) == desk.is_java
    assert "has fixed roles, as in RocketMQ 4.9" in await desk.page("/broker", name=desk.broker)


async def _halves(desk: Desk) -> list[dict[str, Any]]:
    found = await desk.data("/transactions")
    return [it for it in found if it["group"] == "consoled-halves"]


async def _check_changes(desk: Desk) -> None:
    await desk.change("/topic/send", name=TOPIC, body="by hand")
    await desk.change("/topic/alter", topic=TOPIC, read_queues="2", write_queues="2", perm="rw")
    assert {it.queue_id for it in await desk.admin.queues(TOPIC)} == {0, 1}
    plan = await desk.change("/group/reset", group=GROUP, topic=TOPIC, to="first")
    assert "1 message is delivered again." in str(plan["consequences"])
    await desk.change("/group/alter", group=GROUP, retries="1", enabled="yes")
    await desk.change("/dead-letters/replay", group=GROUP)
    (half,) = await _halves(desk)
    await desk.change(
        "/transaction/resolve", confirm=half["half"], transaction=half["half"],
        outcome="rollback",
    )  # fmt: skip
    await desk.change(
        "/broker/setting", name=desk.broker, id="0", key="fileReservedTime", value="71"
    )
    await desk.change("/group/delete", confirm=GROUP, group=GROUP, offsets="yes")
    await desk.change("/topic/delete", confirm=TOPIC, topic=TOPIC)
    assert TOPIC not in await desk.admin.topics()


def _own(file: dict[str, Any]) -> dict[str, Any]:
    topics = [it for it in file["topics"] if it["topicName"] == "Defined"]
    groups = [it for it in file["groups"] if it["groupName"] == "defined-group"]
    return {**file, "topics": topics, "groups": groups}


async def test_definitions_go_to_a_file_and_back(desk: Desk) -> None:
    await desk.admin.create_topic("Defined", queue_count=3)
    await desk.admin.set_order_config("Defined", f"{desk.broker}:3")
    group = SubscriptionGroupConfig(group_name="defined-group", retry_max_times=3)
    await desk.admin.create_group(group)
    file = await desk.data("/definitions")  # tests share the cluster: compare only what is own
    await desk.admin.delete_order_config("Defined")
    await desk.admin.delete_group("defined-group", remove_offsets=True)
    await desk.admin.create_topic("Defined", perm=4)
    form = {"file": json.dumps(_own(file))}
    seen = await desk.web.post("/definitions/import", data=form)
    plan = seen.json()["plan"]
    rows = {(it["kind"], it["name"]): it["fate"] for it in plan["details"]["rows"]}
    assert rows == {
        ("topic", "Defined"): "changed", ("order", "Defined"): "created",
        ("group", "defined-group"): "created",
    }  # fmt: skip
    done = await desk.web.post("/definitions/import", data={**form, "mark": plan["mark"]})
    assert done.json()["text"] == "3 definitions imported."
    await desk.admin.delete_order_config("Defined")
    after = await desk.data("/definitions")
    for kind, key, name in (
        ("topics", "topicName", "Defined"), ("groups", "groupName", "defined-group"),
    ):  # fmt: skip
        (own,) = [it for it in file[kind] if it[key] == name]
        assert own in after[kind]
