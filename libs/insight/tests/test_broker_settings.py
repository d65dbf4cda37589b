# SPDX-License-Identifier: Apache-2.0
"""Settings of brokers: secrets are masked, and differences that mean nothing are left out."""

from typing import Any

from cometmq.insight.broker_settings import Setting, differences, settings_of
from cometmq.remoting.errors import RequestCodeNotSupported


class JavaBroker:
    """Returns only values, without defaults and sources, as RocketMQ's brokers do."""

    async def settings(self):
        raise RequestCodeNotSupported("request type 30006 not supported")

    async def config(self):
        return {"secretKey": "hush", "flushDiskType": "ASYNC_FLUSH"}


async def test_a_broker_of_rocketmq_does_not_tell_sources_and_its_secrets_are_masked():
    broker: Any = JavaBroker()
    assert await settings_of(broker) == [
        Setting("flushDiskType", "ASYNC_FLUSH"),
        Setting("secretKey", "******"),
    ]
    assert Setting("flushDiskType", "ASYNC_FLUSH").is_changed is None


async def test_a_broker_tells_defaults_and_sources(suite, admin):
    broker = next(iter((await admin.masters()).values()))
    found = {it.name: it for it in await settings_of(broker)}
    assert found["fileReservedTime"] == Setting("fileReservedTime", "72", "72", "default")
    assert found["fileReservedTime"].is_changed is False
    port = found["listenPort"]
    assert (port.value, port.default, port.is_changed) == (
        suite.broker.rpartition(":")[2], "10911", True,
    )  # fmt: skip


def test_differences_leave_out_what_is_equal_missing_or_a_brokers_own():
    brokers = {
        "a:0": [Setting("x", "1"), Setting("same", "1"), Setting("brokerName", "a"),
                Setting("only", "1"), Setting("set", None)],
        "b:0": [Setting("x", "2"), Setting("same", "1"), Setting("brokerName", "b"),
                Setting("set", "y")],
        "c:0": [Setting("x", "1"), Setting("same", "1"), Setting("brokerName", "c")],
    }  # fmt: skip
    found = differences(brokers)
    assert [it.name for it in found] == ["set", "x"]
    assert {broker: it.shown for broker, it in found[0].settings.items()} == {
        "a:0": "(unset)", "b:0": "y",
    }  # fmt: skip
    assert {broker: it.value for broker, it in found[1].settings.items()} == {
        "a:0": "1", "b:0": "2", "c:0": "1",
    }  # fmt: skip
    assert differences({"a:0": brokers["a:0"]}) == []
