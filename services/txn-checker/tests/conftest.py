# SPDX-License-Identifier: Apache-2.0
"""A name server, a broker, txn-checkers and a scripted producer in one event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.commands.transactions import CheckTransactionState, EndTransaction
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, reserve_port
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.settings import TxnCheckerSettings

_NOTHING = (
    ResponseCode.QUERY_NOT_FOUND, ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED, ResponseCode.TOPIC_NOT_EXIST,
)  # fmt: skip
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
QUICK = {
    "transactionTimeOut": "0",
    "transactionCheckInterval": "30",
    "transactionCheckMax": "65535",  # rounds may overtake the producer's answer
    "pollNameServerInterval": "50",
    "persistInterval": "20",
    "checkpointInterval": "100",
    "backOffMax": "100",
    "pullSuspend": "200",
}
TIMEOUT_MS = 60_000


class Producer:
    """Sends half messages and answers checks as scripted in `answers`."""

    def __init__(self, broker: str, group: str = "P") -> None:
        self.answers: dict[str, int] = {}
        self.asked: list[str] = []
        self._broker = broker
        self._group = group
        self._client = RemotingClient(
            ClientSettings(),
            clock_ms=SystemClock().monotonic_ms,
            handlers={Code.CHECK_TRANSACTION_STATE: self._check},
        )

    async def ask(self, code: Code, header: Any, body: bytes = b"") -> Any:
        return await self._client.invoke(
            self._broker, code, header, body, timeout_ms=TIMEOUT_MS,
            ok=(0, *_NOTHING),
        )  # fmt: skip

    async def beat(self) -> None:
        body = encode_json(
            Heartbeat(client_id=self._group, producer_data_set=[ProducerData(self._group)])
        )
        await self.ask(Code.HEART_BEAT, None, body)

    async def prepare(self, key: str, **properties: str) -> EndTransaction:
        """Send a half message; return the request that ends it, for the test to set its state."""
        pairs = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": self._group, **properties}
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
        header = SendMessageV2(self._group, "T", "TBW102", 4, 0, 4, 7, 0, text)
        reply = (await self.ask(Code.SEND_MESSAGE_V2, header, key.encode())).header
        assert isinstance(reply, SendMessageReply)
        place = parse_offset_message_id(reply.msg_id).physical_offset
        return EndTransaction(self._group, reply.queue_offset, place, UNKNOWN, key)

    async def end(self, half: EndTransaction, how: int) -> None:
        await self.ask(Code.END_TRANSACTION, _with(half, how))

    async def received(self, topic: str = "T") -> list[str]:
        """Return the bodies of the messages that consumers would receive."""
        return [record.body.decode() for record in await self.records(topic)]

    async def records(self, topic: str) -> list[MessageRecord]:
        header = PullMessage("G", topic, 0, 0, 1000, 4, 0, 0, 0, "*", "TAG")
        answer = await self.ask(Code.PULL_MESSAGE, header)
        return decode_records(answer.body) if answer.code == 0 else []

    async def close(self) -> None:
        await self._client.close()

    async def _check(self, _: None, call: Call[CheckTransactionState]) -> Reply:
        header = call.header
        key = header.msg_id or ""
        self.asked.append(key)
        half = EndTransaction(
            self._group, header.tran_state_table_offset, header.commit_log_offset, UNKNOWN, key,
            from_transaction_check=True,
        )  # fmt: skip
        how = self.answers.get(key)
        if how is not None:
            await self._client.invoke_oneway(
                self._broker, Code.END_TRANSACTION, _with(half, how), timeout_ms=TIMEOUT_MS
            )
        return OK


def _with(half: EndTransaction, how: int) -> EndTransaction:
    fields = {name: getattr(half, name) for name in half.__struct_fields__}
    return EndTransaction(**{**fields, "commit_or_rollback": how})


class Suite:
    """Servers on free ports, with all their files in one folder."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.namesrv = self.broker = ""
        self._stack = stack
        self._broker: BrokerApp | None = None
        self._port = str(reserve_port(BROKER_NEIGHBOURS))

    async def start_namesrv(self, **settings: str) -> None:
        folder = self.folder
        namesrv = NamesrvApp(
            _load(
                NamesrvSettings,
                bindAddress="127.0.0.1",
                listenPort="0",
                kvConfigPath=str(folder / "kv.json"),
                configStorePath=str(folder / "namesrv.properties"),
                **settings,
            ),
            log=NO_LOG,
            clock=SystemClock(),
        )
        await namesrv.start()
        self._stack.push_async_callback(namesrv.stop)
        self.namesrv = namesrv.addresses[0]

    async def start_broker(self) -> None:
        self._broker = BrokerApp(
            _load(
                BrokerSettings,
                bindAddress="127.0.0.1",
                brokerIP1="127.0.0.1",
                brokerName="broker-a",
                listenPort=self._port,
                namesrvAddr=self.namesrv,
                storePathRootDir=str(folder_of(self.folder)),
            ),
            log=NO_LOG,
            clock=SystemClock(),
        )
        await self._broker.start()
        self.broker = self._broker.addresses[0]

    async def stop_broker(self) -> None:
        if self._broker is not None:
            await self._broker.stop()
            self._broker = None

    async def producer(self, group: str = "P", broker: str = "") -> Producer:
        producer = Producer(broker or self.broker, group)
        self._stack.push_async_callback(producer.close)
        await producer.beat()
        return producer

    async def checker(self, name: str = "txn", **settings: str) -> TxnCheckerApp:
        """Start a checker; the fixture stops it unless the test does."""
        given = {
            **QUICK,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.folder / name),
            **settings,
        }
        app = TxnCheckerApp(_load(TxnCheckerSettings, **given), log=NO_LOG, clock=SystemClock())
        await app.start()
        self._stack.push_async_callback(app.stop)
        return app


def folder_of(folder: Path) -> Path:
    return folder / "store"


def _load(type_: Any, **given: str) -> Any:
    return load(type_, prefix="COMETMQ_TEST", env={}, cli=given)


@pytest.fixture
async def suite(tmp_path: Path) -> AsyncIterator[Suite]:
    async with AsyncExitStack() as stack:
        suite = Suite(tmp_path, stack)
        await suite.start_namesrv()
        await suite.start_broker()
        stack.push_async_callback(suite.stop_broker)
        yield suite


@pytest.fixture
async def empty_suite(tmp_path: Path) -> AsyncIterator[Suite]:
    async with AsyncExitStack() as stack:
        yield Suite(tmp_path, stack)


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Return a function that waits until a condition (a plain or coroutine function) holds."""

    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while True:
                holds = condition()
                if asyncio.iscoroutine(holds):
                    holds = await holds
                if holds:
                    return
                await asyncio.sleep(0.01)

    return wait
