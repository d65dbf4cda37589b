# SPDX-License-Identifier: Apache-2.0
"""`txn` against a running suite whose txn-checker performs no checks during the tests."""

import asyncio
import shutil

import pytest

from cometmq.client import Message, TransactionOptions, TransactionProducer, TransactionState, sync
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_messages import HalfState
from cometmq.peers.processes import wait_until
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.transactions import SetTransactionAside
from cometmq.remoting.names import CHECK_GROUP, HALF_TOPIC, OP_HALF_TOPIC
from cometmq.store.os_disk import OsDisk
from cometmq.txn_checker.ledger import Ledger


async def _begin(namesrv, topic, group, count, *, end_with=None):
    """Send half messages and end all or none of them; return their ids."""
    producer = TransactionProducer(
        group, namesrv, check=lambda _: None, options=TransactionOptions()
    )
    async with producer:
        begun = [
            await producer.begin(Message(topic, f"body {n}".encode(), tag="New", keys=f"k{n}"))
            for n in range(count)
        ]
        if end_with is not None:
            for one in begun:
                await one.end(end_with)
    return [one.transaction_id for one in begun]


@pytest.fixture
def begun(ask, suite, topic):
    """Begin two transactions of a group named like the topic; return their ids."""
    return asyncio.run(_begin(suite.namesrv, topic, topic, 2))


def _open(ask, topic):
    return [row["transaction"] for row in ask("txn", "list", "--topic", topic, "--json").json]


def test_open_transactions_are_listed(ask, suite, topic, begun):
    rows = ask("txn", "list", "--group", topic, "--json").json
    assert [row["transaction"] for row in rows] == begun
    assert {row["topic"] for row in rows} == {topic}
    assert [row["keys"] for row in rows] == [["k0"], ["k1"]]
    cut = ask("txn", "list", "--group", topic, "--max", 1, "--json")
    assert cut.json == rows[:1]
    assert cut.err == "cometmq: only the first 1 open are shown: give --max or --until\n"
    assert ask("txn", "list", "--group", topic, "--max", 2).err == ""
    assert ask("txn", "list", "--group", topic, "--until", "1h", "--json").json == []
    assert ask("txn", "list", "--group", "nobody", "--json").json == []
    table = ask("txn", "list", "--group", topic).out
    assert all(one in table for one in begun)


def test_ended_transactions_are_not_listed(ask, suite, topic):
    ids = asyncio.run(_begin(suite.namesrv, topic, topic, 2, end_with=TransactionState.COMMIT))
    assert len(set(ids)) == 2
    wait_until(lambda: not set(_open(ask, topic)) & set(ids), 60, "ends")


def test_a_transaction_is_shown_by_id_and_by_place(ask, topic, begun):
    shown = ask("txn", "show", begun[0], "--json").json
    assert (shown["body"], shown["topic"], shown["open"]) == ("body 0", topic, True)
    assert (shown["group"], shown["keys"], shown["tag"]) == (topic, ["k0"], "New")
    assert ask("txn", "show", shown["half"], "--json").json == shown
    assert "body 0" in ask("txn", "show", begun[0]).out


def test_missing_transactions_are_reported(ask, suite):
    ask("txn", "show", "ABC").assert_refused(
        1,
        "no open transaction has the id ABC: it has ended, or the id is wrong; if it was committed,"
        " its message is found by cometmq message show ABC -t TOPIC\n",
    )
    for command in (("show",), ("check",), ("resolve", "--commit", "--yes")):
        refused = ask("txn", *command, "broker-a:x")
        refused.assert_refused(2, "broker-a:x is neither a message id nor BROKER:OFFSET\n")
    ask("txn", "show", "nobody:3").assert_refused(1, "there is no master nobody; the masters are: ")
    (row,) = ask("cluster", "--json").json
    name = row["broker"]
    place = f"{name}:99999999"
    missing = f"{name} has no half message at the offset 99999999: it never had one, or it has"
    ask("txn", "show", place).assert_refused(1, missing)


@pytest.mark.parametrize(("how", "delivered"), [("--commit", ["body 0"]), ("--rollback", [])])
def test_a_transaction_is_ended_by_hand(ask, topic, begun, how, delivered):
    ended = ask("txn", "resolve", begun[0], how, "--yes", "--json").json
    assert (ended["transaction"], ended["open"]) == (begun[0], False)
    assert _open(ask, topic) == begun[1:]
    again = ask("txn", "resolve", ended["half"], "--commit", "--yes")
    again.assert_refused(1, f"the transaction {ended['half']} has already ended")
    assert ask("txn", "show", ended["half"], "--json").json["open"] is False
    wait = ("--max", 1, "--timeout", 60) if delivered else ("--timeout", 2)
    shown = ask("consume", topic, "--from", "first", "--json", *wait)
    bodies = [line["body"] for line in shown.lines]
    assert bodies == delivered


async def _set_aside(namesrv, place):
    """Set a half message aside, as a txn-checker does after the last check."""
    name, _, offset = place.rpartition(":")
    async with AdminClient(namesrv) as admin:
        master = (await admin.masters())[name]
        half = await master.half_message(int(offset))
        assert half is not None
        header = SetTransactionAside(half.message.physical_offset, half.offset)
        await master.invoke(RequestCode.SET_TRANSACTION_ASIDE, header)
        assert await master.state(half) is HalfState.SET_ASIDE


@pytest.mark.parametrize(("how", "delivered"), [("--commit", ["body 0"]), ("--rollback", [])])
def test_a_transaction_that_was_set_aside_is_ended_by_hand(
    ask, suite, topic, begun, how, delivered
):
    half = _half(ask, begun[0])
    asyncio.run(_set_aside(suite.namesrv, half))
    shown = ask("txn", "show", begun[0], "--json").json
    assert (shown["half"], shown["open"], shown["state"]) == (half, False, "set aside")
    ask("txn", "check", half).assert_refused(1, f"the transaction {half} was set aside, so it is")
    ended = ask("txn", "resolve", begun[0], how, "--yes", "--json").json
    assert (ended["half"], ended["state"]) == (half, "ended")
    again = ask("txn", "resolve", half, "--commit", "--yes")
    again.assert_refused(1, f"the transaction {half} has already ended")
    ask("txn", "show", begun[0]).assert_refused(1, "no open transaction has the id")
    wait = ("--max", 1, "--timeout", 60) if delivered else ("--timeout", 2)
    lines = ask("consume", topic, "--from", "first", "--json", *wait).lines
    assert [line["body"] for line in lines] == delivered


def test_nothing_is_ended_unasked(ask, topic, begun):
    for both in ((), ("--commit", "--rollback", "--yes"), ("--rollback", "--commit", "--yes")):
        refused = ask("txn", "resolve", begun[0], *both)
        refused.assert_refused(2, "give either --commit or --rollback")
    ask("txn", "resolve", begun[0], "--commit").assert_refused(
        2, f"Commit the transaction {begun[0]} of"
    )
    assert _open(ask, topic) == begun


def test_a_check_without_a_producer_says_so(ask, topic, begun):
    answer = ask("txn", "check", begun[0], "--json")
    assert answer.status == 1
    assert answer.err.startswith(f"cometmq: No producer of the group {topic} is connected")


def test_a_check_has_the_producer_asked(ask, suite, topic, begun):
    asked = []

    def check(message):
        asked.append(message.message_id)
        return TransactionState.COMMIT

    with sync.TransactionProducer(topic, suite.namesrv, check=check) as producer:
        producer.queues(topic)
        half = _half(ask, begun[0])
        answer = ask("txn", "check", begun[0], "--json")
        assert (answer.json["ended"], bool(answer.json["asked"])) == (False, True)
        wait_until(lambda: begun[0] not in _open(ask, topic), 60, "the end")
        assert ask("txn", "check", half, "--json").json["ended"] is True
    assert asked == [begun[0]]


async def _examine_all(namesrv):
    """Commit the end offsets of both queues, as a txn-checker does once every transaction has
    ended.
    """
    async with AdminClient(namesrv) as admin:
        (master,) = (await admin.masters()).values()
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            await master.commit_offset(CHECK_GROUP, topic, 0, await master.max_offset(topic, 0))


@pytest.mark.parametrize("state", [TransactionState.COMMIT, TransactionState.ROLLBACK])
def test_a_transaction_that_ended_long_ago_is_not_asked_about(
    call, running_cluster, tmp_path, state
):
    """A broker forgets the ends of transactions below the checker's offset."""
    asked = []

    def check(message):
        asked.append(message.message_id)
        return TransactionState.COMMIT

    with running_cluster(tmp_path) as cluster:
        cluster.start_broker("vm")
        assert call("topic", "create", "Ended", "-n", cluster.namesrv).status == 0
        asyncio.run(_begin(cluster.namesrv, "Ended", "pg", 1, end_with=state))
        asyncio.run(_examine_all(cluster.namesrv))
        assert cluster.children["vm"].stop(60) == 0
        cluster.start_broker("vm")
        with sync.TransactionProducer("pg", cluster.namesrv, check=check) as producer:
            producer.queues("Ended")
            answer = call("txn", "check", "vm:0", "--json", "-n", cluster.namesrv)
            assert (answer.json["ended"], answer.json["asked"]) == (True, None)
            wait = ("--from", "first", "--json", "--timeout", 2, "-n", cluster.namesrv)
            delivered = len(call("consume", "Ended", *wait).lines)
    assert asked == []
    assert delivered == (state is TransactionState.COMMIT)


def _half(ask, transaction):
    return ask("txn", "show", transaction, "--json").json["half"]


def test_a_checkers_folder_is_compared_with_the_queues(ask, suite, topic, begun):
    folder = suite.data / "txn-checker"

    def is_read():
        (found,) = ask("txn", "verify", folder, "--json").json
        return (found["half_behind"], found["op_behind"]) == (0, 0)

    wait_until(is_read, 60, "the checker")
    answer = ask("txn", "verify", folder, "--json")
    (found,) = answer.json
    assert found["differences"] == []
    assert found["open_count"] >= len(begun)
    assert ask("txn", "verify", folder).status == 0
    assert ask("txn", "verify", suite.data, "--json").json[0]["broker"] == found["broker"]
    ask("txn", "verify", suite.data / "store").assert_refused(
        2, f"{suite.data / 'store'} is not the folder of a txn-checker"
    )


def test_a_folder_that_is_wrong_is_named(ask, suite, topic, begun, tmp_path):
    folder = suite.data / "txn-checker"
    half = int(_half(ask, begun[0]).rpartition(":")[2])

    def is_there():
        (found,) = ask("txn", "verify", folder, "--json").json
        return found["half_behind"] == 0

    wait_until(is_there, 60, "the checker")
    (name,) = [path.name for path in folder.iterdir() if path.is_dir() and path.suffix != ".new"]
    copy = tmp_path / "copy" / name
    shutil.copytree(folder / name, copy)
    ledger = Ledger(OsDisk(), str(copy))
    ledger.close([half])
    ledger.checkpoint().sync()
    answer = ask("txn", "verify", tmp_path / "copy")
    assert answer.status == 1
    assert f"{name}: half {half}: is ended in the table, but by no op message" in answer.out
    ask("txn", "verify", tmp_path / "none").assert_refused(
        2, f"{tmp_path / 'none'} is not a folder"
    )
