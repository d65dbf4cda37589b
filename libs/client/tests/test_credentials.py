# SPDX-License-Identifier: Apache-2.0
"""Request signing in every kind of client, and the sources of the secret."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientOptions,
    ConsumeFrom,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    SendFailed,
    SessionCredentials,
)
from cometmq.client.credentials import credentials_from_file
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.errors import ServerError
from cometmq.remoting.signature import Signer
from cometmq.remoting.types import Serialization

GOOD = SessionCredentials("userKey1", "userSecret1", "some-token")
BAD = SessionCredentials("userKey1", "userSecret2")
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


class Guard:
    """A broker's signature check."""

    def __init__(self) -> None:
        self.signer = Signer(GOOD.secret_key)
        self.codes: set[int] = set()

    def check(self, _context: object, call: Call[Any]) -> None:
        self.codes.add(call.code)
        if not self.signer.has_signed(call.ext, call.body):
            raise ServerError(f"not signed: {call.code}")


@pytest.fixture
async def guard(cluster: MemoryCluster) -> Guard:
    guard = Guard()
    await cluster.stop_broker(cluster.broker)
    cluster.broker.before = (guard.check,)
    await cluster.start_broker(cluster.broker)
    cluster.create_topic("T")
    cluster.create_topic(TRACE_TOPIC)
    return guard


@pytest.mark.parametrize("serialization", list(Serialization))
async def test_every_client_signs_everything(
    cluster: MemoryCluster, guard: Guard, serialization: Serialization
) -> None:
    common: dict[str, Any] = {"credentials": GOOD, "serialization": serialization}
    first: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST_OFFSET}
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(messages: list[MessageExt]) -> None:
        for message in messages:
            got.put_nowait(message.body)

    producing = ProducerOptions(**common, trace=True)
    async with Producer("P", cluster.namesrv, options=producing) as producer:
        await producer.send(Message("T", b"one"))
        await producer.send_batch([Message("T", b"two"), Message("T", b"three")])
        consumer = PushConsumer(
            "G", cluster.namesrv, listener=listen, options=PushOptions(**common, **first)
        )
        consumer.subscribe("T")
        async with consumer:
            bodies = {await asyncio.wait_for(got.get(), 60) for _ in range(3)}
    lite = LitePullConsumer("L", cluster.namesrv, options=LitePullOptions(**common, **first))
    lite.subscribe("T")
    async with lite:
        polled = await lite.poll()
    async with AdminClient(cluster.namesrv, options=ClientOptions(**common)) as admin:
        assert await admin.topics()

    assert bodies == {b"one", b"two", b"three"}
    assert polled
    assert len(cluster.messages(TRACE_TOPIC)) > 0
    assert guard.codes >= {
        RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    }  # fmt: skip


@pytest.mark.parametrize("credentials", [BAD, None])
async def test_refusals_are_reported(
    cluster: MemoryCluster, guard: Guard, credentials: SessionCredentials | None
) -> None:
    options = ProducerOptions(credentials=credentials)
    async with Producer("P", cluster.namesrv, options=options) as producer:
        with pytest.raises(SendFailed, match="not signed: 310"):
            await producer.send(Message("T", b"one"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accessKey: rocketmq2\nsecretKey: 12345678\n", ("rocketmq2", "12345678", "")),
        ("accessKey: 1234567\nsecretKey: ' s '\nsecurityToken: t\n", ("1234567", "s", "t")),
        ("accessKey: 2024-13-45\nsecretKey: 1.50\nsecurityToken:\n", ("2024-13-45", "1.50", "")),
    ],
)
def test_the_file_of_rocketmq_s_tools(
    tmp_path: Path, text: str, expected: tuple[str, str, str]
) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    assert credentials_from_file(path) == SessionCredentials(*expected)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file"),
        ("accessKey: [", "not a YAML file"),
        ("- " * 5_000 + "x", "not a YAML file"),
        ("- a list", "accessKey or secretKey is missing"),
        ("accessKey: userKey1", "accessKey or secretKey is missing"),
        ("acessKey: k\nsecretKey: s", ".* is missing; did you mean accessKey"),
        ("accessKey: [k]\nsecretKey: s", "the values are texts"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "tools.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidArgument, match=f"tools.yml: {complaint}"):
        credentials_from_file(path)


@pytest.mark.parametrize("path", ["~no-such-user/tools.yml", "tools\0.yml"])
def test_an_impossible_path_is_named(path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"credentials '[^\n]*tools[^\n]*: [^\n]+$"):
        credentials_from_file(path)
