# SPDX-License-Identifier: Apache-2.0
"""Running info compared with captures of a Java consumer."""

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import ConsumeFrom, LitePullOptions, PushOptions
from cometmq.client.consume.queues.rates import option_properties, stacks, state_properties
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.locks import LockBatch
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo

WIRE = Path(__file__).parents[3] / "tests/golden/wire"
OWN_NAMES = {
    # properties of ClientConfig, which the Java client reports from 5.x on
    "pollNameServerInterval",
    "heartbeatBrokerInterval",
    "persistConsumerOffsetInterval",
    "mqClientApiTimeout",
    "instanceName",
    "namesrvAddr",
    "vipChannelEnabled",
    "useTLS",
}
OTHER_VALUES = {
    "consumeThreadMax",  # the captured consumer had 4
    "consumeThreadMin",
    "PROP_THREADPOOL_CORE_SIZE",
    "awaitTerminationMillisWhenShutdown",  # our client waits for the listener
}


def captured(code: str, sender: str) -> list[Any]:
    (path,) = WIRE.glob(f"{code}-*.jsonl")
    with path.open(encoding="utf-8") as lines:
        return [found for line in lines if (found := json.loads(line))["from"] == sender]


def java_info() -> ConsumerRunningInfo:
    frame = captured("307", "broker")[0]["response"]["body_text"]
    return decode_json(ConsumerRunningInfo, frame.encode())


def test_options_have_javas_names_and_defaults() -> None:
    java = java_info().properties
    ours = option_properties(PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET))
    assert ours.keys() - java.keys() == OWN_NAMES
    for name in ours.keys() & java.keys() - OTHER_VALUES:
        assert ours[name] == java[name], name


def test_the_state_has_javas_form() -> None:
    java = java_info().properties
    ours = state_properties(["127.0.0.1:32000"], "CONSUME_PASSIVELY", begin_ms=1)
    assert ours.keys() <= java.keys()
    for name in ("PROP_NAMESERVER_ADDR", "PROP_CONSUME_TYPE", "PROP_CLIENT_VERSION"):
        assert ours[name] == java[name]


def test_lite_pull_consumers_tell_their_own_options() -> None:
    ours = option_properties(LitePullOptions(auto_commit=False))
    assert ours["autoCommit"] == "false"
    assert ours["pullThresholdForAll"] == "10000"
    assert "PROP_CONSUMEORDERLY" not in ours


async def test_stacks_name_tasks_and_threads() -> None:
    text = stacks()
    assert "test_stacks_name_tasks_and_threads" in text
    assert '"MainThread" thread' in text


@pytest.mark.parametrize("code", ["041", "042"])
def test_locks_are_asked_for_as_java_asks(code: str) -> None:
    asked = [found["request"]["body_text"] for found in captured(code, "java-client-4.9.4")]
    assert asked
    for text in asked[:20]:
        again = encode_json(decode_json(LockBatch, text.encode()))
        assert json.loads(again) == json.loads(text)
