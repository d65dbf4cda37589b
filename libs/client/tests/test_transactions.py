# SPDX-License-Identifier: Apache-2.0
import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    EndContext,
    InvalidArgument,
    Message,
    MessageExt,
    SendStatus,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
    sync,
)
from cometmq.client.hooks import MessageKind, SendContext
from cometmq.client.listener import ListenerError
from cometmq.client.testing import MemoryBroker, MemoryCluster, eventually, handlers
from cometmq.client.testing.handlers import ask
from cometmq.client.trace import EndTransaction, Pub, decode_trace
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from cometmq.remoting.names import HALF_TOPIC
from cometmq.testing.client.listening import KeptEvents

COMMIT, ROLLBACK, UNKNOWN = TransactionState
MESSAGE = Message("T", b"order 1", tag="New", keys="order-1")


async def test_the_age_at_the_first_check_is_a_property_that_applications_set(
    cluster: MemoryCluster,
) -> None:
    name = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    async with TransactionProducer("tg", cluster.namesrv, check=lambda _: COMMIT) as producer:
        for value in ("30s", "-1", "\N{ARABIC-INDIC DIGIT THREE}"):
            with pytest.raises(InvalidArgument, match=f"{name} must be a number of seconds"):
                await producer.begin(Message("T", b"x", properties={name: value}))
        await producer.begin(Message("T", b"x", properties={name: "30"}))
        (half,) = cluster.messages(HALF_TOPIC)
    assert half.properties[name] == "30"
    assert half.user_properties == {name: "30"}


@pytest.mark.parametrize("id_", ["", "-1", "0A", "broken" * 9])
async def test_a_half_message_without_an_id_runs_no_local_transaction(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, id_: str
) -> None:
    """Its end could not be told; it raised ValueError after the local transaction."""
    stored = handlers.send_message

    def lying(broker: MemoryBroker, call: Call[Any]) -> Reply:
        reply = stored(broker, call)
        assert isinstance(reply.header, SendMessageReply)
        return Reply(reply.code, msgspec.structs.replace(reply.header, msg_id=id_))

    monkeypatch.setitem(cluster.broker._handlers, RequestCode.SEND_MESSAGE_V2, lying)
    await cluster.stop_broker(cluster.broker)
    await cluster.start_broker(cluster.broker)
    async with producer(cluster) as sender:
        with pytest.raises(RemoteProtocolError, match="broker-a answers a half message without"):
            await sender.send_in_transaction(MESSAGE, execute=unexpected_start)


def unexpected_start(_message: Message, _argument: object) -> TransactionState:
    raise AssertionError("the local transaction runs")


def unexpected(_message: MessageExt) -> None:
    raise AssertionError("nobody asks")


def producer(
    cluster: MemoryCluster,
    *,
    check: Any = unexpected,
    log: KeptEvents | None = None,
    **options: Any,
) -> TransactionProducer:
    """Return a producer whose transactions are checked only on the test's request."""
    cluster.broker.may_check_transactions = False
    return TransactionProducer(
        "pg",
        cluster.namesrv,
        check=check,
        options=TransactionOptions(**options),
        log=log or KeptEvents(),
    )


async def ends(cluster: MemoryCluster, count: int = 1) -> list[int]:
    """Wait until `count` transactions have ended; return their states."""
    await eventually(lambda: len(cluster.broker.ends) >= count)
    return [end.commit_or_rollback for end in cluster.broker.ends]


@pytest.mark.parametrize(
    ("answer", "told", "delivered"),
    [
        (COMMIT, TRANSACTION_COMMIT, 1),
        (ROLLBACK, TRANSACTION_ROLLBACK, 0),
        (UNKNOWN, TRANSACTION_NONE, 0),
        (None, TRANSACTION_NONE, 0),
    ],
)
async def test_the_local_transaction_decides(
    cluster: MemoryCluster, answer: TransactionState | None, told: int, delivered: int
) -> None:
    seen: list[tuple[str | None, Any]] = []

    async def execute(message: Message, argument: Any) -> TransactionState | None:
        seen.append((message.message_id, argument))
        assert not cluster.messages("T")
        return answer

    async with producer(cluster) as transactions:
        result = await transactions.send_in_transaction(MESSAGE, 7, execute=execute)
        assert await ends(cluster) == [told]
    assert result.state is (answer or UNKNOWN)
    assert result.status is SendStatus.SEND_OK
    assert seen == [(result.message_id, 7)]
    assert len(cluster.messages("T")) == delivered
    end = cluster.broker.ends[0]
    assert (end.msg_id, end.producer_group) == (result.message_id, "pg")
    assert not end.from_transaction_check


async def test_a_half_message_names_its_group(cluster: MemoryCluster) -> None:
    async with producer(cluster) as transactions:
        transaction = await transactions.begin(Message("T", b"x"))
        (half,) = cluster.messages(HALF_TOPIC)
        assert half.properties["PGROUP"] == "pg"
        assert half.properties["TRAN_MSG"] == "true"
        assert transaction.transaction_id == half.message_id == transaction.message.message_id
        assert cluster.broker.ends == []
        await transaction.end(COMMIT)
        await ends(cluster)
    (message,) = cluster.messages("T")
    assert message.message_id == transaction.transaction_id


async def test_the_prepared_bit_travels(cluster: MemoryCluster) -> None:
    flags: list[int] = []
    hooked: list[MessageKind] = []

    class Hook:
        def before_send(self, context: SendContext) -> None:
            hooked.append(context.kind)

        def after_send(self, context: SendContext) -> None:
            assert context.result is not None

    transactions = producer(cluster)
    transactions.add_hook(Hook())
    async with transactions:
        invoke = transactions._sending()._invoke

        async def watched(address: str, code: int, header: Any, *rest: Any) -> Any:
            flags.append(header.sys_flag)
            return await invoke(address, code, header, *rest)

        transactions._sending()._invoke = watched  # type: ignore[method-assign,assignment]
        await transactions.begin(MESSAGE)
        await transactions.send(MESSAGE)
    assert [flag & TRANSACTION_PREPARED for flag in flags] == [TRANSACTION_PREPARED, 0]
    assert hooked == [MessageKind.TRANSACTION_HALF, MessageKind.NORMAL]


@pytest.mark.parametrize("rolls_back", [True, False])
async def test_a_local_transaction_that_raises_is_rolled_back_and_its_error_raised(
    cluster: MemoryCluster, *, rolls_back: bool
) -> None:
    def execute(_message: Message, _argument: Any) -> TransactionState:
        raise OSError("the database is gone")

    log = KeptEvents()
    async with producer(cluster, log=log, rollback_on_error=rolls_back) as transactions:
        with pytest.raises(OSError, match="the database is gone"):
            await transactions.send_in_transaction(MESSAGE, execute=execute)
        state = TRANSACTION_ROLLBACK if rolls_back else TRANSACTION_NONE
        assert await ends(cluster) == [state]
    assert cluster.messages("T") == []
    assert [it["error"] for it in log.of("transaction.failed")] == ["OSError: the database is gone"]


async def test_an_answer_that_is_none_leaves_it_open(cluster: MemoryCluster) -> None:
    async with producer(cluster) as transactions:
        execute: Any = lambda _message, _argument: True  # noqa: E731
        with pytest.raises(ListenerError):
            await transactions.send_in_transaction(MESSAGE, execute=execute)
        assert await ends(cluster) == [TRANSACTION_NONE]


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    ],
)
async def test_unsafely_stored_half_messages_are_rolled_back(
    cluster: MemoryCluster, code: ResponseCode
) -> None:
    def execute(_message: Message, _argument: Any) -> TransactionState:
        raise AssertionError("it must not run")

    cluster.broker.store_less_safely(code)
    async with producer(cluster) as transactions:
        result = await transactions.send_in_transaction(MESSAGE, execute=execute)
        assert await ends(cluster) == [TRANSACTION_ROLLBACK]
    assert (result.state, result.error) == (ROLLBACK, None)


async def test_plain_functions_run_beside_the_loop(cluster: MemoryCluster) -> None:
    threads: list[str] = []

    def decide(*_arguments: object) -> TransactionState:
        threads.append(threading.current_thread().name)
        return UNKNOWN

    async with producer(cluster, check=decide) as transactions:
        await transactions.send_in_transaction(MESSAGE, execute=decide)
        ask(cluster.broker)
        await ends(cluster, 2)
    assert [name.rpartition("_")[0] for name in threads] == ["cometmq-transaction", "cometmq-check"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [(COMMIT, TRANSACTION_COMMIT), (ROLLBACK, TRANSACTION_ROLLBACK), (None, TRANSACTION_NONE)],
)
async def test_checks_are_answered(
    cluster: MemoryCluster, answer: TransactionState | None, told: int
) -> None:
    asked: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState | None:
        asked.append(message)
        return answer

    async with producer(cluster, check=check) as transactions:
        transaction = await transactions.begin(MESSAGE)
        ask(cluster.broker)
        assert await ends(cluster) == [told]
    (message,) = asked
    assert (message.topic, message.body, message.tag) == ("T", b"order 1", "New")
    assert message.message_id == transaction.transaction_id
    end = cluster.broker.ends[0]
    assert end.from_transaction_check
    assert end.transaction_id == end.msg_id == transaction.transaction_id


async def test_a_failing_check_is_unknown_and_others_go_on(
    cluster: MemoryCluster,
) -> None:
    answers: Iterator[Exception | TransactionState] = iter([OSError("no database"), COMMIT])

    async def check(_message: MessageExt) -> TransactionState:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    log = KeptEvents()
    async with producer(cluster, check=check, log=log) as transactions:
        await transactions.begin(MESSAGE)
        ask(cluster.broker)
        ask(cluster.broker)
        assert await ends(cluster, 2) == [TRANSACTION_NONE, TRANSACTION_COMMIT]
    assert [it["error"] for it in log.of("transaction.check_failed")] == ["OSError: no database"]


async def test_questions_beyond_the_bound_are_left_to_the_next_round(
    cluster: MemoryCluster,
) -> None:
    go_on = asyncio.Event()
    calls = 0

    async def check(_message: MessageExt) -> TransactionState:
        nonlocal calls
        calls += 1
        await go_on.wait()
        return COMMIT

    log = KeptEvents()
    async with producer(cluster, check=check, log=log, pending_checks_max=1) as transactions:
        await transactions.begin(MESSAGE)
        ask(cluster.broker)
        await eventually(lambda: calls == 1)
        ask(cluster.broker)
        ask(cluster.broker)
        await eventually(lambda: bool(log.of("transaction.unchecked")))
        go_on.set()
        assert len(await ends(cluster, 2)) == 2
    assert [it["error"] for it in log.of("transaction.unchecked")] == ["too many questions"]


async def test_a_lost_end_is_only_logged(cluster: MemoryCluster) -> None:
    log = KeptEvents()
    async with producer(cluster, log=log, send_timeout_ms=3_000) as transactions:
        transaction = await transactions.begin(MESSAGE)
        await cluster.stop_broker(cluster.broker)
        remoting = transactions._running().remoting
        await eventually(lambda: not remoting.is_connected(cluster.broker.address))
        result = await transaction.end(COMMIT)
    assert result.state is COMMIT
    (error,) = [it["error"] for it in log.of("transaction.untold")]
    assert cluster.broker.address in str(error)


async def test_namespaces_hold_for_transactions(cluster: MemoryCluster) -> None:
    asked: list[MessageExt] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        return COMMIT

    async with producer(cluster, check=check, namespace="acme") as transactions:
        await transactions.begin(MESSAGE)
        assert cluster.messages(HALF_TOPIC)[0].properties["PGROUP"] == "acme%pg"
        ask(cluster.broker)
        await ends(cluster)
    assert [message.topic for message in asked] == ["T"]
    assert len(cluster.messages("acme%T")) == 1


async def test_ends_are_traced(cluster: MemoryCluster) -> None:
    contexts: list[EndContext] = []

    class Hook:
        def end_transaction(self, context: EndContext) -> None:
            contexts.append(context)

    async def execute(_message: Message, _argument: Any) -> TransactionState:
        return ROLLBACK

    transactions = producer(cluster, trace=True)
    transactions.add_end_hook(Hook())
    async with transactions:
        result = await transactions.send_in_transaction(MESSAGE, execute=execute)
    bodies = [message.body for message in cluster.messages("RMQ_SYS_TRACE_TOPIC")]
    half, end = [record for body in bodies for record in decode_trace(body)]
    assert isinstance(half, Pub)
    assert half.kind is MessageKind.TRANSACTION_HALF
    assert isinstance(end, EndTransaction)
    assert (end.state, end.kind) == (ROLLBACK, MessageKind.TRANSACTION_COMMIT)
    assert (end.message_id, end.transaction_id) == (result.message_id, result.message_id)
    assert (end.tag, end.keys, end.is_from_check) == ("New", "order-1", False)
    assert end.store_host == cluster.broker.address
    assert [context.state for context in contexts] == [ROLLBACK]


async def test_missing_functions_are_named(cluster: MemoryCluster) -> None:
    none: Any = None
    with pytest.raises(InvalidArgument, match="check is None, which cannot be called"):
        TransactionProducer("pg", cluster.namesrv, check=none)
    async with producer(cluster) as transactions:
        with pytest.raises(InvalidArgument, match="give `execute`"):
            await transactions.send_in_transaction(MESSAGE)
    assert cluster.messages(HALF_TOPIC) == []


def test_without_a_loop_the_local_transaction_runs_in_the_calling_thread(
    served: MemoryCluster,
) -> None:
    threads: list[threading.Thread] = []

    def execute(message: Message, argument: Any) -> TransactionState:
        threads.append(threading.current_thread())
        if argument == "raise":
            raise OSError(message.keys)
        return COMMIT if argument == "commit" else ROLLBACK

    def send(argument: str) -> TransactionState:
        return transactions.send_in_transaction(MESSAGE, argument).state

    with sync.TransactionProducer(
        "pg", served.namesrv, check=lambda _: COMMIT, execute=execute
    ) as transactions:
        assert [send(argument) for argument in ("commit", "undo")] == [COMMIT, ROLLBACK]
        with pytest.raises(OSError, match="order-1"):
            send("raise")
        served.broker.store_less_safely(ResponseCode.FLUSH_DISK_TIMEOUT)
        assert send("commit") is ROLLBACK
        with pytest.raises(InvalidArgument, match="give `execute`"):
            sync.TransactionProducer("other", check=lambda _: COMMIT).send_in_transaction(MESSAGE)
    assert threads == [threading.current_thread()] * 3


class Deciding:
    async def __call__(self, _message: Message, _argument: object) -> TransactionState:
        return COMMIT


async def decide(_message: Message, _argument: object) -> TransactionState:
    return COMMIT


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (decide, r"execute is a coroutine function.*write `def execute\(message, argument\)`"),
        (functools.partial(decide), "execute is a coroutine function"),
        (Deciding(), "execute is a coroutine function"),
        (lambda _message: COMMIT, r"too many positional.*`def execute\(message, arg.*`, not async"),
        (7, "execute is 7, which cannot be called"),
    ],
)
def test_without_a_loop_the_local_transaction_is_a_plain_function(
    served: MemoryCluster, execute: Any, text: str
) -> None:
    def make(execute: Any = None) -> sync.TransactionProducer:
        return sync.TransactionProducer(
            "pg", served.namesrv, check=lambda _: COMMIT, execute=execute
        )

    with pytest.raises(InvalidArgument, match=text):
        make(execute)
    with make() as transactions, pytest.raises(InvalidArgument, match=text):
        transactions.send_in_transaction(MESSAGE, execute=execute)
    assert served.messages(HALF_TOPIC) == []


@pytest.mark.parametrize("message", ["x", None])
async def test_only_a_message_begins_a_transaction(cluster: MemoryCluster, message: Any) -> None:
    async with producer(cluster) as transactions:
        with pytest.raises(InvalidArgument, match=r"send a Message\(topic, body\), not "):
            await transactions.begin(message)
