# SPDX-License-Identifier: Apache-2.0
"""`store inspect|verify|dump` on folders that RocketMQ wrote, and on one in use."""

import json
import tarfile
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "store"


@pytest.fixture
def golden(tmp_path):
    """Unpack a store of Java's broker; its folder and the settings it was written with."""
    settings = tmp_path / "broker.conf"
    settings.write_text("brokerName=golden\nmaxHashSlotNum=100\nmaxIndexNum=400\n")

    def unpack(name):
        with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name, settings

    return unpack


def expected(name):
    return json.loads((GOLDEN / name / "expected.json").read_text())


def test_inspect_shows_what_a_store_of_java_holds(call, golden):
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
def test_a_store_of_java_is_found_good(call, golden, name):
    folder, settings = golden(name)
    found = call("store", "verify", folder, "-c", settings, "--json").json
    assert (found["damaged"], found["findings"]) == (False, 0)
    assert found["records"] == found["queue_entries"] > 0


def test_what_a_killed_broker_leaves_is_no_damage(call, golden):
    folder, settings = golden("killed")
    result = call("store", "verify", folder, "-c", settings)
    assert result.status == 0
    assert "queue-entry-missing" in result.out
    assert "The next start of a broker builds what is missing." in result.out


def test_a_flipped_bit_is_damage(call, golden):
    folder, settings = golden("clean")
    first = min((folder / "store" / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[88] ^= 1  # in the body of the first record
    first.write_bytes(data)
    for command in ("verify", "inspect"):
        result = call("store", command, folder, "-c", settings)
        assert result.status == 1
        assert str(first) in result.out
    found = json.loads(call("store", "verify", folder, "-c", settings, "--json").out)
    assert found["damaged"] is True
    assert "log-damaged" in {finding["kind"] for finding in found["first_findings"]}


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


@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
def test_a_folder_that_is_no_store_is_one_line(call, tmp_path, command):
    result = call("store", command, tmp_path)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"cometmq: {tmp_path}: no store, it has no folder commitlog\n"


def test_wrong_arguments_are_one_line(call, golden, tmp_path):
    folder, _ = golden("clean")
    result = call("store", "dump", folder, "--queue", 1)
    assert (result.status, result.err) == (2, "cometmq: --queue: needs --topic\n")
    (tmp_path / "bad.conf").write_text("maxIndexNum=many\n")
    result = call("store", "verify", folder, "-c", tmp_path / "bad.conf")
    assert result.status == 2
    assert "maxIndexNum=many" in result.err
