# SPDX-License-Identifier: Apache-2.0
"""`store inspect|verify|dump` on folders that RocketMQ wrote, and on one in use."""

import json
import tarfile
from pathlib import Path
from time import monotonic

import pytest

from cometmq.cli.verbs.store import EXIT_STATUS
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child, wait_until
from cometmq.store.inspection.verification import StoreState

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "store"


@pytest.fixture
def golden(tmp_path):
    """Unpack a store written by a Java broker; return its folder and settings."""
    settings = tmp_path / "broker.conf"
    settings.write_text("brokerName=golden\nmaxHashSlotNum=100\nmaxIndexNum=400\n")

    def unpack(name):
        with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name, settings

    return unpack


def expected(name):
    return json.loads((GOLDEN / name / "expected.json").read_text())


def test_inspect_shows_the_contents_of_a_java_store(call, golden):
    folder, settings = golden("clean")
    found = call("store", "inspect", folder, "-c", settings, "--json").json
    wanted = expected("clean")
    assert found["stopped_in_order"] is True
    assert found["max_offset"] == wanted["commitLog"]["maxOffset"]
    ends = {(queue["topic"], queue["queue"]): queue["max"] for queue in found["queues"]}
    for queue in wanted["queues"]:
        assert ends[queue["topic"], queue["queueId"]] == queue["maxOffset"]
    assert found["damages"] == []
    text = call("store", "inspect", folder, "-c", settings).out
    assert "GoldenBusy" in text
    assert "Index files" in text


@pytest.mark.parametrize("name", ["clean", "trimmed"])
def test_a_store_of_java_is_healthy(call, golden, name):
    folder, settings = golden(name)
    found = call("store", "verify", folder, "-c", settings, "--json").json
    assert (found["state"], found["findings"]) == ("healthy", 0)
    assert found["records"] == found["queue_entries"] > 0


def test_a_store_of_a_killed_java_broker_needs_recovery(call, golden):
    folder, settings = golden("killed")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = call("store", "verify", folder, "-c", settings)
    assert result.status == EXIT_STATUS[StoreState.NEEDS_RECOVERY]
    assert "needs recovery" in result.out
    assert "Start a broker on the folder" in result.out
    assert {path: path.read_bytes() for path in before} == before


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_damage(call, golden):
    folder, settings = golden("clean")
    first = min((folder / "store" / "commitlog").iterdir())
    flip(first, 88)  # within the body of the first record
    for command in ("verify", "inspect"):
        result = call("store", command, folder, "-c", settings)
        assert result.status == EXIT_STATUS[StoreState.DAMAGED]
        assert str(first) in result.out
    found = json.loads(call("store", "verify", folder, "-c", settings, "--json").out)
    assert found["state"] == "damaged"
    assert "log-damaged" in {finding["kind"] for finding in found["first_findings"]}


def test_a_shortened_list_of_findings_says_so(call, golden, monkeypatch):
    for module in ("cometmq.store.inspection.verification", "cometmq.cli.verbs.store"):
        monkeypatch.setattr(f"{module}.FINDINGS_PER_KIND_MAX", 2)
    folder, settings = golden("clean")
    for file in (folder / "store" / "index").iterdir():
        for position in range(40 + 100 * 4, 40 + 100 * 4 + 10 * 20, 20):
            flip(file, position)  # the hash of an entry
    result = call("store", "verify", folder, "-c", settings)
    assert result.status == EXIT_STATUS[StoreState.DAMAGED]
    found = json.loads(call("store", "verify", folder, "-c", settings, "--json").out)
    (kind, count), *_ = found["findings_by_kind"].items()
    assert count > 2
    shown = len(found["first_findings"])
    assert f"The table shows {shown} of {found['findings']} findings, the first 2 of" in result.out
    assert f"{count} {kind}" in result.out


def test_an_entry_that_leads_to_another_record_is_damage(call, golden):
    folder, settings = golden("clean")
    queues = folder / "store" / "consumequeue"
    files = [file for file in queues.rglob("*") if file.is_file()]
    file = next(file for file in files if any(file.read_bytes()[40:60]))
    data = bytearray(file.read_bytes())
    data[20:40] = data[:20]
    file.write_bytes(data)
    result = call("store", "verify", folder, "-c", settings)
    assert result.status == EXIT_STATUS[StoreState.DAMAGED]
    assert "queue-entry-wrong" in result.out


def test_an_index_of_another_shape_asks_for_the_settings(call, golden):
    folder, _ = golden("clean")
    result = call("store", "verify", folder)
    result.assert_refused(2, "")
    assert "give the broker's settings with -c" in result.err


class LoadedBroker:
    """A separate suite under load, which can be killed."""

    def __init__(self, folder):
        self.folder = folder
        self.namesrv = f"127.0.0.1:{free_port()}"
        self._ports = (self.namesrv.rpartition(":")[2], str(free_broker_port()))
        self._children = []

    def start(self):
        options = [*("--data", str(self.folder / "data"), "--http-port", "-1")]
        options += [*("--namesrv-port", self._ports[0], "--broker-port", self._ports[1])]
        suite = self._spawn("standalone", *options)
        suite.wait_for_log("is running", 60)
        return suite

    def load(self):
        arguments = ("Load", "x" * 200, "--count", str(10**9), "--rate", "1000", "-k", "key")
        return self._spawn("produce", *arguments, "-n", self.namesrv)

    def _spawn(self, command, *arguments):
        log_path = self.folder / f"{command}{len(self._children)}.log"
        child = Child(command, [str(PROGRAM), command, *arguments], log_path=log_path)
        self._children.append(child)
        return child

    def end(self):
        for child in reversed(self._children):
            child.kill()


@pytest.fixture
def loaded(tmp_path):
    broker = LoadedBroker(tmp_path)
    yield broker
    broker.end()


def wait_for_records(call, data, count):
    deadline = monotonic() + 60
    while call("store", "inspect", data, "--json").json["records"] < count:
        assert monotonic() < deadline, "the load stores nothing"


def test_states_of_a_store_under_load_after_a_kill_and_after_a_stop(call, loaded):
    data = loaded.folder / "data"
    suite = loaded.start()
    load = loaded.load()
    wait_for_records(call, data, 500)
    for _ in range(3):
        found = json.loads((result := call("store", "verify", data, "--json")).out)
        assert (found["state"], found["findings"]) == ("in use", 0)
        assert result.status == EXIT_STATUS[StoreState.IN_USE]
        assert found["in_use_by"] == f"process {suite.pid}"
    assert call("store", "dump", data, "-t", "Load", "--max", 100).out.count("\n") == 100
    inspected = call("store", "inspect", data, "--json")
    assert (inspected.status, inspected.json["damages"]) == (0, [])

    suite.kill()
    load.kill()
    found = json.loads((result := call("store", "verify", data, "--json")).out)
    assert (found["state"], found["findings"]) == ("needs recovery", 0)
    assert result.status == EXIT_STATUS[StoreState.NEEDS_RECOVERY]
    journal = call("store", "inspect", data, "--json").json["journal_of_the_tables"]
    assert {table["table"]: table["applied"] for table in journal}["topics.json"] is True

    assert loaded.start().stop(60) == 0
    found = call("store", "verify", data, "--json").json
    assert (found["state"], found["findings"]) == ("healthy", 0)


def test_a_damaged_journal_is_named_with_what_a_start_does(call, loaded):
    suite = loaded.start()
    load = loaded.load()
    data = loaded.folder / "data"
    wait_for_records(call, data, 500)
    suite.kill()
    load.kill()
    (path,) = data.rglob("config/journal/*")
    content = bytearray(path.read_bytes())
    content[content.index(b'"topics.json"', 100)] ^= 1
    path.write_bytes(content)
    result = call("store", "verify", data)
    assert result.status == EXIT_STATUS[StoreState.NEEDS_RECOVERY]
    assert "journal-damaged" in result.out
    assert loaded.start().stop(60) == 0
    assert call("store", "verify", data).status == 0


def test_a_queue_is_dumped_from_an_offset_on(call, golden):
    folder, _ = golden("clean")
    result = call(
        *("store", "dump", folder, "-t", "GoldenKeys", "--queue", 0, "--json"),
        *("--from", 2, "--max", 3),
    )
    (queue,) = [
        queue
        for queue in expected("clean")["queues"]
        if (queue["topic"], queue["queueId"]) == ("GoldenKeys", 0)
    ]
    wanted = queue["records"][2:5]
    assert [line["physical_offset"] for line in result.lines] == [
        record["physicalOffset"] for record in wanted
    ]
    assert [line["tag"] for line in result.lines] == [record["tags"] for record in wanted]
    assert result.lines[0]["system_properties"]["KEYS"] == wanted[0]["keys"]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (("-t", "nosuch"), "of the topic nosuch"),
        (("-t", "GoldenKeys", "--queue", 99), "of the topic GoldenKeys in queue 99"),
        (
            ("-t", "GoldenKeys", "--queue", 0, "--from", 9999),
            "of the topic GoldenKeys in queue 0 from offset 9999 on",
        ),
        (("--from", 99_999_999), "from log offset 99999999 on"),
    ],
)
def test_a_dump_of_nothing_names_what_is_missing(call, golden, options, missing):
    folder, _ = golden("clean")
    dumped = call("store", "dump", folder, *options)
    hint = ""
    if "--queue" in options:
        hint = " in its consume queue, which may have lost entries; to read the log itself, leave"
        hint += " out --queue"
    dumped.assert_refused(1, f"{folder} has no record {missing}{hint}\n")


def test_the_log_is_dumped_in_order(call, golden):
    folder, _ = golden("clean")
    lines = call("store", "dump", folder).out.splitlines()
    offsets = [int(line.split()[0]) for line in lines]
    assert offsets == sorted(offsets)
    assert len(offsets) == 583
    assert "GoldenUtf8" in "".join(lines)
    some = call("store", "dump", folder, "-t", "GoldenBusy", "--json").lines
    assert {line["topic"] for line in some} == {"GoldenBusy"}


def test_the_store_of_a_running_broker_can_be_looked_at(call, ask, suite, topic):
    ask("produce", topic, "seen", "-k", "k")
    assert call("store", "inspect", suite.data, "--json").json["records"] >= 1
    assert "seen" in call("store", "dump", suite.data, "-t", topic).out


def test_a_dump_leaves_out_a_deleted_topic_of_the_same_name(call, ask, suite, topic):
    ask("produce", topic, "old", "--count", 4)
    assert ask("topic", "delete", topic, "--yes").status == 0
    assert ask("topic", "create", topic, "--queues", 1).status == 0
    assert ask("produce", topic, "new", "--count", 6).status == 0
    dump = ("store", "dump", suite.data, "-t", topic, "--json")

    def bodies():
        return [line["body"] for line in call(*dump).lines if line["queue_id"] == 0]

    wait_until(lambda: bodies() == ["new"] * 6, 60, "the queue on disk")
    assert " of a deleted topic " in call(*dump).err
    every = call(*dump, "--with-deleted")
    assert [line["body"] for line in every.lines] == ["old"] * 4 + ["new"] * 6
    assert every.err == ""


@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
def test_a_folder_that_is_not_a_store_gives_one_line(call, tmp_path, command):
    result = call("store", command, tmp_path)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"cometmq: {tmp_path} is not a store: it has no folder commitlog\n"


def test_wrong_arguments_are_one_line(call, golden, tmp_path):
    folder, _ = golden("clean")
    result = call("store", "dump", folder, "--queue", 1)
    assert (result.status, result.err) == (2, "cometmq: --queue needs --topic\n")
    (tmp_path / "bad.conf").write_text("maxIndexNum=many\n")
    result = call("store", "verify", folder, "-c", tmp_path / "bad.conf")
    assert result.status == 2
    assert "maxIndexNum=many" in result.err
