# SPDX-License-Identifier: Apache-2.0
"""The exporter with a real name server, a real broker and real consumers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.client import ConsumeFrom, ConsumeResult, Message, Producer, PushConsumer, PushOptions
from cometmq.exporter.app import ExporterApp
from cometmq.exporter.metrics import CLIENT_FAMILIES
from cometmq.exporter.settings import ExporterSettings
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.peers.shared.strangers import ODD_NAMES, Stranger
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.remoting.half_answers import half_answers
from cometmq.testing.runtime.pages import get
from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, reserve_port

LOCAL = "127.0.0.1"
TLS_MODE = "tls.server.mode"
ACCOUNTS = """\
accounts:
- accessKey: monitor
  secretKey: monitor-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""


def loaded(type_: Any, **given: str) -> Any:
    return load(type_, prefix="COMETMQ_TEST", env={}, cli=given)


class Suite:
    """Servers on free ports, with all their files in one folder."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._broker: BrokerApp | None = None
        self._port = str(reserve_port(BROKER_NEIGHBOURS))
        self.namesrv, self.broker = "", f"{LOCAL}:{self._port}"
        self.http, self.broker_http = AdminHttp(log=NO_LOG), AdminHttp(log=NO_LOG)

    async def start(self, **settings: str) -> None:
        namesrv = NamesrvApp(
            loaded(
                NamesrvSettings,
                bindAddress=LOCAL,
                listenPort="0",
                kvConfigPath=str(self._folder / "kv.json"),
                configStorePath=str(self._folder / "namesrv.properties"),
                **{name: text for name, text in settings.items() if name == TLS_MODE},
            ),
            log=NO_LOG,
            clock=SystemClock(),
        )
        await namesrv.start()
        self._stack.push_async_callback(namesrv.stop)
        self.namesrv = namesrv.addresses[0]
        await self.start_broker(**settings)
        self._stack.push_async_callback(self.stop_broker)

    async def start_broker(self, **settings: str) -> None:
        self._broker = BrokerApp(
            loaded(
                BrokerSettings,
                bindAddress=LOCAL,
                brokerIP1=LOCAL,
                brokerName="broker-a",
                listenPort=self._port,
                namesrvAddr=self.namesrv,
                storePathRootDir=str(self._folder / "store"),
                **settings,
            ),
            log=NO_LOG,
            clock=SystemClock(),
            admin=self.broker_http,
        )
        await self._broker.start()

    async def stop_broker(self) -> None:
        if self._broker is not None:
            await self._broker.stop()
            self._broker = None

    async def exporter(self, **settings: str) -> ExporterApp:
        app = ExporterApp(
            loaded(
                ExporterSettings,
                **{"namesrvAddr": self.namesrv, "collectInterval": "50", **settings},
            ),
            log=NO_LOG,
            clock=SystemClock(),
            admin=self.http,
        )
        await app.start()
        self._stack.push_async_callback(app.stop)
        return app

    async def consumer(self, listener: Any, group: str = "billing") -> PushConsumer:
        options = PushOptions(namesrv=self.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer(group, listener=listener, options=options)
        consumer.subscribe("Books")
        return await self._stack.enter_async_context(consumer)

    async def send(self, count: int) -> None:
        async with Producer("shop", self.namesrv) as producer:
            for number in range(count):
                await producer.send(Message("Books", b"%d" % number))

    async def samples(
        self, *, of_broker: bool = False
    ) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Scrape; return (labels, value) pairs by name."""
        http = self.broker_http if of_broker else self.http
        answer = await get(http, "/metrics")
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    async def readiness(self) -> str:
        """Return why the exporter is not ready; empty if it is."""
        answer = await get(self.http, "/readyz")
        return (
            ""
            if answer.status_code == 200
            else str(json.loads(answer.content)["checks"]["exporter"])
        )


@pytest.fixture
async def suite(tmp_path: Path) -> AsyncIterator[Suite]:
    async with AsyncExitStack() as stack:
        yield Suite(tmp_path, stack)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  # it asks over HTTP
            await asyncio.sleep(0.02)


async def test_figures_of_a_consumer_are_shown_under_the_exporters_names(suite: Suite) -> None:
    await suite.start()
    await suite.send(8)
    consumed = []

    async def listen(messages: Any) -> ConsumeResult:
        consumed.extend(messages)
        return ConsumeResult.later(1) if messages[0].body == b"3" else ConsumeResult.SUCCESS

    consumer = await suite.consumer(listen)
    await suite.exporter(groupCountEnable="true")
    rows: dict[str, dict[str, float]] = {}

    async def all_shown() -> bool:
        rows.clear()
        for name, samples in (await suite.samples()).items():
            for labels, value in samples:
                if labels.get("topic") == "Books":
                    assert labels["group"] == "billing"
                    assert labels["clientId"] == consumer.client_id
                    assert labels["clientAddr"].startswith(f"{LOCAL}:")
                    rows[name] = {"value": value}
        return (
            len(consumed) >= 8
            and len(rows) == 6
            and all(row["value"] > 0 for name, row in rows.items() if not name.endswith("_rt"))
        )

    await until(all_shown)
    assert rows["rocketmq_client_consume_fail_msg_count"]["value"] == 1
    found = await suite.samples()
    assert {family.name for family in CLIENT_FAMILIES} <= found.keys()
    ((labels, count),) = [
        sample for sample in found["rocketmq_group_count"] if sample[0]["group"] == "billing"
    ]
    assert (labels["localaddr"], count) == (consumer.client_id, 1)
    assert ({"broker": "broker-a"}, 1) in found["cometmq_exporter_broker_up"]
    assert found["cometmq_exporter_clients"] == [({}, 1)]
    assert found["cometmq_exporter_clients_asked_total"][0][1] > 0
    assert found["cometmq_exporter_clients_failed_total"][0][1] == 0
    assert await suite.readiness() == ""


async def test_names_of_strangers_hide_no_figures(suite: Suite) -> None:
    """Neither the exporter's figures of consumers nor the broker's of topics and groups."""
    await suite.start(metricsExporterNames="true")
    await suite.send(1)
    consumer = await suite.consumer(lambda _: ConsumeResult.SUCCESS)
    exporter = await suite.exporter()

    async def good() -> set[tuple[bool, str]]:
        """Return the families with figures of the topic, the group or the consumer."""
        return {
            (of_broker, name)
            for of_broker in (False, True)
            for name, samples in (await suite.samples(of_broker=of_broker)).items()
            for labels, _ in samples
            if {"Books", "billing", consumer.client_id}.intersection(labels.values())
        }

    async def are_shown() -> bool:
        return {is_broker for is_broker, _ in await good()} == {False, True}

    await until(are_shown)
    before = await good()
    stranger = Stranger(suite.namesrv, suite.broker)
    await stranger.register(ODD_NAMES, topic="Books", group="billing")
    count = sum(exporter.stats.rounds.values())

    async def is_round_over() -> bool:
        return sum(exporter.stats.rounds.values()) >= count + 2

    await until(is_round_over)
    assert before - await good() == set()
    assert await suite.readiness() == ""
    await stranger.close()


async def test_readiness_names_a_broker_that_is_down(suite: Suite) -> None:
    await suite.start()
    await suite.exporter()

    async def is_ready() -> bool:
        return await suite.readiness() == ""

    async def is_named() -> bool:
        reason = await suite.readiness()
        return "broker-a" in reason or "no broker is registered" in reason

    await until(is_ready)
    await suite.stop_broker()
    await until(is_named)
    await suite.start_broker()
    await until(is_ready)


async def test_name_servers_that_are_down_do_not_stop_the_exporter(suite: Suite) -> None:
    suite.namesrv = f"{LOCAL}:1"
    await suite.exporter()

    async def is_named() -> bool:
        return f"{LOCAL}:1: " in await suite.readiness()

    await until(is_named)
    assert (await suite.samples())["cometmq_exporter_groups"] == [({}, 0)]


async def test_a_name_server_that_stops_in_an_answer_is_soon_asked_anew(suite: Suite) -> None:
    await suite.start()

    async def is_ready() -> bool:
        relay.is_broken = not relay.broken_count
        return await suite.readiness() == ""

    async with half_answers(suite.namesrv) as relay:
        suite.namesrv = relay.address
        await suite.exporter()
        await until(is_ready)


async def test_any_account_of_a_broker_with_access_control_will_do(
    suite: Suite, tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    await suite.start(aclEnable="true", aclFile=str(file))

    async def is_refused() -> bool:
        return "AccessDenied" in await suite.readiness()

    async def is_ready() -> bool:
        return await suite.readiness() == ""

    stranger = await suite.exporter()
    await until(is_refused)
    await stranger.stop()
    suite.http = AdminHttp(log=NO_LOG)
    await suite.exporter(accessKey="monitor", secretKey="monitor-secret")
    await until(is_ready)


async def test_servers_that_require_tls_are_asked_with_tls(suite: Suite) -> None:
    await suite.start(**{TLS_MODE: "enforcing", "tls.enable": "true"})

    async def is_refused() -> bool:
        return "TLS" in await suite.readiness()

    async def is_ready() -> bool:
        return await suite.readiness() == ""

    plain = await suite.exporter()
    await until(is_refused)
    await plain.stop()
    suite.http = AdminHttp(log=NO_LOG)
    await suite.exporter(**{"tls.enable": "true"})
    await until(is_ready)


def test_settings_that_cannot_work_are_refused() -> None:
    def check(**given: str) -> None:
        ExporterApp(loaded(ExporterSettings, **given), log=NO_LOG, clock=SystemClock()).check()

    with pytest.raises(SettingsError, match="namesrvAddr must be set"):
        check()
    with pytest.raises(SettingsError, match="accessKey and secretKey belong together"):
        check(namesrvAddr="127.0.0.1:9876", accessKey="x")
    check(namesrvAddr="127.0.0.1:9876")
