# SPDX-License-Identifier: Apache-2.0
"""Commands on a queue with a record that was damaged while its broker was stopped.

The log has no checksums, like one that a Java broker wrote: with them, brokers leave out the
messages of the damaged page, and the damage reaches no command.
"""

import shutil
import struct
import subprocess

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

START_TIMEOUT_S = 180
SIZE_AT = 0
BODY_LENGTH_AT = 84  # in a record whose hosts have IPv4 addresses
BODY_AT = 88


class Broker:
    def __init__(self, folder):
        self._folder = folder
        self._ports = free_port(), free_broker_port()
        self.data = folder / "data"
        self.namesrv = f"127.0.0.1:{self._ports[0]}"
        self.child: Child | None = None

    def stop(self):
        assert self.child is not None
        self.child.stop(60)

    def start(self):
        namesrv, broker = map(str, self._ports)
        options = ["--data", str(self.data), "--namesrv-port", namesrv, "--broker-port", broker]
        self.child = Child(
            "suite", [str(PROGRAM), "standalone", *options, "--http-port", "-1"],
            log_path=self._folder / f"log{self.child is None}", cwd=self._folder,
        )  # fmt: skip
        self.child.wait_for_log("is running", START_TIMEOUT_S)


class Damages:
    """Starts brokers whose `Orders` topic has 10 messages in one queue; message 5 is damaged."""

    def __init__(self, folder, written, call):
        self._folder = folder
        self._written = written
        self._call = call
        self.broker: Broker | None = None

    def made(self, at, data):
        self.broker = broker = Broker(self._folder)
        shutil.copytree(self._written, broker.data)
        shown = self._call("store", "dump", broker.data, "-t", "Orders", "--queue", 0, "--from", 5)
        offset = int(shown.out.split()[0])
        with (broker.data / "store/commitlog" / f"{0:020}").open("r+b") as log:
            log.seek(offset + at)
            log.write(data)
        assert self._call("store", "verify", broker.data).status == 5
        shutil.rmtree(broker.data / "store/checksums")
        return broker


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the data of a broker that has stopped."""
    broker = Broker(tmp_path_factory.mktemp("written"))
    broker.data.mkdir()  # small files, because they are copied
    (broker.data / "broker.conf").write_text("mappedFileSizeCommitLog=1048576\n")
    broker.start()
    bodies = [f"message-{number}" for number in range(10)]
    produce = ["produce", "Orders", *bodies, "--in-flight", "1"]
    for command in (["topic", "create", "Orders", "--queues", "1"], produce):
        whole = [str(PROGRAM), *command, "-n", broker.namesrv]
        subprocess.run(whole, check=True, capture_output=True, timeout=120)
    broker.stop()
    return broker.data


@pytest.fixture
def damages(tmp_path, written, call):
    found = Damages(tmp_path, written, call)
    try:
        yield found
    finally:
        if found.broker is not None and found.broker.child is not None:
            found.broker.stop()


@pytest.fixture
def damaged(damages):
    """Run a broker with a record whose body length is damaged."""
    broker = damages.made(BODY_LENGTH_AT, struct.pack(">i", 0x58580000))
    broker.start()
    return broker


LEFT_OUT = "the broker left out 1 message at queue offset 5 of Orders, queue 0"
OTHERS = [f"message-{number}" for number in range(10) if number != 5]


def test_a_member_prints_what_is_around_the_damage_and_fails(call, damaged):
    args = ("consume", "Orders", "-g", "G1", "--from", "first", "--max", 9, "--timeout", 60)
    shown = call(*args, "-n", damaged.namesrv)
    assert shown.status == 1, shown.err
    assert shown.out.split() == OTHERS
    assert LEFT_OUT in shown.err


def test_an_observer_goes_on_at_an_explicit_offset(call, damaged):
    at = ("-n", damaged.namesrv)
    shown = call("consume", "Orders", "--from", "first", "--max", 9, "--timeout", 60, *at)
    assert shown.status == 1
    assert shown.out.split() == OTHERS
    assert LEFT_OUT in shown.err
    row = call("topic", "route", "Orders", "--json", *at).json[0]
    queue = f"{row['broker']}:0"
    shown = call("consume", "Orders", "--queue", queue, "--offset", 6, "--max", 4, *at)
    assert shown.out.split() == [f"message-{number}" for number in range(6, 10)], shown.err


def test_a_group_without_members_skips_the_record(call, damaged):
    at = ("-n", damaged.namesrv)
    call("group", "create", "G2", *at)
    row = call("topic", "route", "Orders", "--json", *at).json[0]
    reset = ("group", "reset", "G2", "Orders", "--queue", f"{row['broker']}:0", *at)
    call(*reset).assert_refused(2, "nothing to change: give --to or --offset")
    call(*reset, "--offset", 11, "--yes").assert_refused(2, "the offset 11 is outside")
    assert call(*reset, "--offset", 6, "--yes", "--json").json[0]["offset"] == 6
    shown = call("consume", "Orders", "-g", "G2", "--max", 4, "--timeout", 60, *at)
    assert shown.out.split() == [f"message-{number}" for number in range(6, 10)], shown.err


def test_a_damaged_body_is_named(call, damages):
    broker = damages.made(BODY_AT, b"M")
    for options, name in (((), "from log offset"), (("-t", "Orders", "--queue", 0), "offset 5")):
        dumped = call("store", "dump", broker.data, *options)
        assert dumped.status == 5
        assert dumped.err.startswith("cometmq: damaged: ")
        assert name in dumped.err
    broker.start()
    at = ("-n", broker.namesrv)
    shown = call("consume", "Orders", "--from", "first", "--max", 10, "--json", *at)
    assert shown.status == 1
    found = {line["body"]: line.get("damaged", False) for line in shown.lines}
    assert found == {f"{'Mm'[n != 5]}essage-{n}": n == 5 for n in range(10)}
    (line,) = shown.err.splitlines()
    name = shown.lines[5]["message_id"]
    assert line.startswith(f"cometmq: the body of message {name}, at queue offset 5 of Orders,")
    assert "does not match its CRC" in line
    shown = call("consume", "Orders", "-g", "G", "--from", "first", "--max", 10, *at)
    assert (shown.status, shown.out.count("essage-")) == (1, 10)
    assert line in shown.err.splitlines()
    for command in (
        ["queryMsgByUniqueKey", "-t", "Orders", "-i", name],
        ["printMsg", "-t", "Orders"],
    ):
        shown = call(*command, *at)
        assert shown.status == 1
        assert line in shown.err.splitlines()


def test_messages_that_the_broker_leaves_out_are_named(call, damages):
    broker = damages.made(SIZE_AT, struct.pack(">i", 1000))
    broker.start()
    at = ("-n", broker.namesrv)
    for member in ((), ("-g", "G")):
        shown = call("consume", "Orders", "--from", "first", "--max", 9, *member, *at)
        assert (shown.status, shown.out.count("message-")) == (1, 9)
        assert "the broker left out 1 message at queue offset 5 of Orders, queue 0" in shown.err
    shown = call("printMsg", "-t", "Orders", *at)
    assert (shown.status, shown.err.count("left out 1 message at queue offset 5")) == (1, 1)
