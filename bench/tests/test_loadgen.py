# SPDX-License-Identifier: Apache-2.0
"""The native generator against the floor and against servers that answer wrongly."""

import json
import socket
import struct
import threading
from contextlib import contextmanager

import pytest
from macro.native import BenchError, Floor, loadgen


@contextmanager
def answering(make_header):
    """A server that answers each request with the header made from the request's."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as stream:
            while prefix := stream.read(8):
                total, word = struct.unpack(">II", prefix)
                rest = stream.read(total - 4)
                header = json.dumps(make_header(json.loads(rest[: word & 0xFFFFFF]))).encode()
                peer.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(timeout=10)
        listener.close()


@pytest.mark.parametrize("serialization", ["json", "rocketmq"])
@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (8, 1), (3, 17)])
def test_every_message_of_a_count_is_answered_once(serialization, connections, in_flight):
    with Floor() as floor:
        report = loadgen(
            "send",
            floor.port,
            count=5000,
            connections=connections,
            in_flight=in_flight,
            serialization=serialization,
        )
    assert report["messages_in_all"] == report["messages"] == 5000
    assert report["codes"] == {"0": 5000}
    assert 0 < report["latency_us"]["p50"] <= report["latency_us"]["max"]


def test_a_send_carries_what_the_java_producer_sends():
    seen = []

    def success(header):
        seen.append(header)
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with answering(success) as port:
        loadgen("send", port, count=8, queues=4, topic="T", group="G", serialization="json")
    fields = [header["extFields"] for header in seen]
    assert [f["e"] for f in fields] == ["0", "1", "2", "3"] * 2
    assert {(f["a"], f["b"], f["c"], f["m"]) for f in fields} == {("G", "T", "TBW102", "false")}
    keys = {f["i"].removesuffix("\x02WAIT\x01true").removeprefix("UNIQ_KEY\x01") for f in fields}
    assert len(keys) == 8
    assert {len(key) for key in keys} == {32}
    assert {header["code"] for header in seen} == {310}


def test_refused_messages_are_counted_as_errors():
    def busy(header):
        return {"code": 2, "flag": 1, "opaque": header["opaque"]}

    with answering(busy) as port:
        report = loadgen("send", port, count=10, serialization="json")
    assert report["errors"] == 10
    assert report["messages"] == 0
    assert report["codes"] == {"2": 10}


def test_an_answer_to_nothing_stops_the_run():
    def wrong(header):
        return {"code": 0, "flag": 1, "opaque": header["opaque"] + 1}

    with answering(wrong) as port, pytest.raises(BenchError, match="unknown opaque"):
        loadgen("send", port, count=10, serialization="json")
