# SPDX-License-Identifier: Apache-2.0
"""Tests the native generator against `floor`, and against servers that give wrong answers."""

import base64
import hmac
import json
import socket
import struct
import threading
from contextlib import contextmanager, suppress

import pytest
from macro.native import SENDERS_MAX_S, BenchError, Floor, Senders, fill, loadgen


@contextmanager
def answering(make_header):
    """Serve one connection; `make_header` builds each answer from the request's header."""
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
        thread.join(timeout=60)
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


@pytest.mark.parametrize("serialization", ["json", "rocketmq"])
def test_a_pull_from_the_floor_brings_32_messages(serialization):
    with Floor() as floor:
        report = loadgen(
            "pull", floor.port, seconds=0.5, warmup=0.0, connections=4, in_flight=1,
            topic="T", queues=4, serialization=serialization,
        )  # fmt: skip
    assert report["errors"] == 0
    assert report["messages"] == 32 * report["requests"] > 0


def test_a_send_has_the_content_of_the_java_producers():
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


def test_a_rate_is_not_exceeded():
    with Floor() as floor:
        report = loadgen("send", floor.port, rate=500, seconds=3.0, connections=2, in_flight=2)
    assert report["errors"] == 0
    assert 0 < report["messages_in_all"] < 500 * (report["seconds"] + 10)


def test_at_a_rate_requests_are_charged_for_the_stall_that_delays_them():
    seen: list[int] = []
    has_enough = threading.Event()

    def stall(header):
        if not seen:
            threading.Event().wait(0.5)  # 500 requests become due meanwhile
        seen.append(header["opaque"])
        if len(seen) == 300:
            has_enough.set()
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with answering(stall) as port, Senders(port, rate=1000, serialization="json") as senders:
        assert has_enough.wait(60)
        report = senders.report()
    assert report["errors"] == 0
    # The first 300 requests waited for at least 200 ms; in a closed loop, only the first would.
    assert report["latency_us"]["p99"] > 100_000


def test_senders_send_until_their_report_is_asked_for():
    with Floor() as floor, Senders(floor.port, rate=1000, connections=2) as senders:
        report = senders.report()
    assert report["errors"] == 0
    assert report["seconds"] < SENDERS_MAX_S


def test_senders_without_a_server_name_the_reason():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # without listening
        port = silent.getsockname()[1]
        with Senders(port, rate=1000) as senders, pytest.raises(BenchError, match="connect"):
            senders.report()


def test_refusals_during_the_warm_up_are_in_the_report():
    codes = iter([2, 2, 2])

    def busy_at_first(header):
        return {"code": next(codes, 0), "flag": 1, "opaque": header["opaque"]}

    with answering(busy_at_first) as port:
        report = loadgen("send", port, count=500, warmup=0.1, serialization="json")
    assert report["errors"] == 3
    assert report["codes"]["2"] == 3


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


def record(number):
    """Return a stored record; the generator reads only its size."""
    return struct.pack(">I", 96) + number.to_bytes(92, "big")


@contextmanager
def broker(answer):
    """Serve connections; `answer` maps a request's header and body to code, fields and body."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    threads = []

    def serve(peer):
        with peer, peer.makefile("rb") as stream:
            while prefix := stream.read(8):
                total, word = struct.unpack(">II", prefix)
                rest = stream.read(total - 4)
                request = json.loads(rest[: word & 0xFFFFFF])
                code, fields, body = answer(request, rest[word & 0xFFFFFF :])
                header = {
                    "code": code, "flag": 1, "opaque": request["opaque"], "extFields": fields,
                }  # fmt: skip
                head = json.dumps(header, separators=(",", ":")).encode()
                lengths = struct.pack(">II", 4 + len(head) + len(body), len(head))
                peer.sendall(lengths + head + body)

    def accept():
        while not stop.is_set():
            with suppress(TimeoutError):
                peer, _ = listener.accept()
                peer.settimeout(10)
                threads.append(threading.Thread(target=serve, args=(peer,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        for thread in (acceptor, *threads):
            thread.join(timeout=60)
        listener.close()


def test_messages_go_to_every_queue_of_every_topic_with_the_given_properties():
    seen = []

    def success(header):
        seen.append(header["extFields"])
        return {"code": 0, "flag": 1, "opaque": header["opaque"]}

    with answering(success) as port:
        options = {"topics": 3, "queues": 2, "properties": "region=eu,level=#"}
        loadgen("send", port, count=192, topic="T", serialization="json", **options)
    places = [(fields["b"], fields["e"]) for fields in seen]
    every = {(f"T_000{topic}", str(queue)) for topic in range(3) for queue in range(2)}
    assert set(places) == every
    assert all(places.count(place) == 32 for place in every)
    tails = [fields["i"].partition("\x02WAIT\x01true\x02")[2] for fields in seen]
    assert {tail[:-1] for tail in tails} == {"region\x01eu\x02level\x01"}
    assert {tail[-1] for tail in tails} == set("0123456789")


def test_groups_pull_every_queue_each():
    seen = []

    def messages(header, _):
        fields = header["extFields"]
        seen.append((fields["consumerGroup"], fields["queueId"], fields["sysFlag"]))
        return 0, {"nextBeginOffset": "1"}, record(1)

    with broker(messages) as port:
        options = {"connections": 6, "queues": 2, "groups": 3, "group": "G", "registered": True}
        report = loadgen("pull", port, count=60, topic="T", serialization="json", **options)
    assert report["messages_in_all"] == 60
    assert set(seen) == {(f"G_{group}", str(queue), "0") for group in range(3) for queue in (0, 1)}


def test_a_filter_that_nothing_passed_moves_the_pull_on():
    offsets = []

    def nothing(header, _):
        offsets.append(int(header["extFields"]["queueOffset"]))
        return 20, {"nextBeginOffset": str(offsets[-1] + 32)}, b""

    with broker(nothing) as port:
        report = loadgen("pull", port, count=4, topic="T", serialization="json")
    assert offsets == [0, 32, 64, 96]
    assert (report["errors"], report["messages_in_all"]) == (0, 0)


def test_an_orderly_consumer_locks_its_queue_before_each_pull():
    seen = []

    def locked(header, body):
        seen.append(header["code"])
        if header["code"] == 41:
            asked = json.loads(body)
            assert asked["mqSet"] == [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]
            return 0, {}, json.dumps({"lockOKMQSet": asked["mqSet"]}).encode()
        assert header["extFields"]["sysFlag"] == "5"  # and the offset to commit
        return 0, {"nextBeginOffset": "32"}, record(1) + record(2)

    with broker(locked) as port:
        report = loadgen("orderly", port, count=6, topic="T", serialization="json")
    assert seen == [41, 11] * 3
    assert report["messages_in_all"] == 6


def test_a_lock_that_is_not_granted_is_an_error():
    with broker(lambda *_: (0, {}, b'{"lockOKMQSet":[]}')) as port:
        report = loadgen("orderly", port, count=1, topic="T", serialization="json")
    assert report["errors"] == 1


def test_filling_resends_refused_messages():
    codes = iter([0, 2, 0, 2, 2, 0, 2, 0, 0])
    with broker(lambda *_: (next(codes), {}, b"")) as port:
        fill(port, 5, topic="T", serialization="json")
    assert next(codes, None) is None


@pytest.mark.parametrize("mode", ["send", "pull"])
@pytest.mark.parametrize("body_bytes", [0, 1, 55, 128, 1000])
def test_signatures_are_those_of_the_fields_in_the_order_of_their_names(mode, body_bytes):
    seen = []

    def refuse(header):
        seen.append(header["extFields"])
        return {"code": 1, "flag": 1, "opaque": header["opaque"]}

    keys = {"access_key": "benchUser1", "secret_key": "secret"}
    with answering(refuse) as port:
        loadgen(mode, port, count=20, body_bytes=body_bytes, serialization="json", **keys)
    body = b"x" * body_bytes if mode == "send" else b""
    assert len({fields["Signature"] for fields in seen}) == (20 if mode == "send" else 1)
    for fields in seen:
        signature = fields.pop("Signature")
        content = "".join(fields[name] for name in sorted(fields)).encode() + body
        digest = hmac.digest(b"secret", content, "sha1")
        assert signature == base64.b64encode(digest).decode()
