# SPDX-License-Identifier: Apache-2.0
"""Tests the generator for Redis and NATS against fake servers that answer a few requests."""

import re
import socket
import threading
from contextlib import contextmanager

import page
import pytest
import report
from macro.native import BenchError, append
from macro.rivals import call_nats, clear_nats, clear_redis

JOIN_TIMEOUT_S = 30


@contextmanager
def serving(serve, *, connections=1):
    """Run `serve` for each connection, with its socket and a file to read from."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        for _ in range(connections):
            peer, _ = listener.accept()
            with peer, peer.makefile("rb") as stream:
                serve(peer, stream)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(JOIN_TIMEOUT_S)
        listener.close()
    assert not thread.is_alive()


def redis_request(stream):
    """Return the words of a request, or None at the end of the input."""
    head = stream.readline()
    if not head:
        return None
    words = []
    for _ in range(int(head[1:])):
        size = int(stream.readline()[1:])
        words.append(stream.read(size + 2)[:-2])
    return words


def nats_publishes(peer, stream):
    """Greet the client, then yield the subject, reply subject and payload of each message."""
    peer.sendall(b"INFO {}\r\nPING\r\n")
    while line := stream.readline():
        words = line.split()
        if words[0] == b"PUB":
            yield words[1], words[2], stream.read(int(words[3]) + 2)[:-2]


def test_redis_gets_an_entry_with_the_body_for_each_message():
    seen = []

    def serve(peer, stream):
        while words := redis_request(stream):
            seen.append(words)
            peer.sendall(b"$3\r\n1-0\r\n")

    with serving(serve) as port:
        result = append("redis", port, count=8, in_flight=3, queues=4, topic="T", body_bytes=5)
    assert (result["messages"], result["errors"], result["codes"]) == (8, 0, {"0": 8})
    assert [words[1] for words in seen] == [b"T.0", b"T.1", b"T.2", b"T.3"] * 2
    assert {tuple(words[2:]) for words in seen} == {(b"*", b"body", b"xxxxx")}
    assert {words[0] for words in seen} == {b"XADD"}


def test_answers_of_redis_may_come_in_pieces():
    def serve(peer, stream):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while redis_request(stream):
            for byte in b"$16\r\n1526919030474-55\r\n":
                peer.sendall(bytes((byte,)))

    with serving(serve) as port:
        assert append("redis", port, count=20, in_flight=4)["messages"] == 20


def test_refusals_of_redis_are_counted():
    def serve(peer, stream):
        while redis_request(stream):
            peer.sendall(b"-OOM command not allowed\r\n")

    with serving(serve) as port:
        result = append("redis", port, count=5)
    assert (result["messages"], result["errors"], result["codes"]) == (0, 5, {"1": 5})


def test_nats_may_answer_in_any_order():
    seen = []

    def serve(peer, stream):
        waiting = []
        for subject, inbox, payload in nats_publishes(peer, stream):
            seen.append((subject, payload))
            waiting.append(inbox)
            if len(waiting) == 4:
                answer = b'{"stream":"BENCH","seq":1}'
                for reply_to in reversed(waiting):
                    head = b"MSG %b 1 %d\r\n" % (reply_to, len(answer))
                    peer.sendall(head + answer + b"\r\n")
                waiting.clear()

    with serving(serve) as port:
        result = append(
            "nats", port, count=12, in_flight=4, queues=1, topics=2, topic="T", body_bytes=3
        )
    assert (result["messages"], result["codes"]) == (12, {"0": 12})
    assert seen == [(b"T.0000.0", b"xxx"), (b"T.0001.0", b"xxx")] * 6


def test_refusals_of_nats_are_counted():
    def serve(peer, stream):
        for _, inbox, _ in nats_publishes(peer, stream):
            answer = b'{"error":{"code":503},"stream":"BENCH","seq":0}'
            peer.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(answer), answer))

    with serving(serve) as port:
        assert append("nats", port, count=5)["errors"] == 5


def test_an_error_of_nats_ends_the_run_with_its_text():
    def serve(peer, stream):
        for _ in nats_publishes(peer, stream):
            peer.sendall(b"-ERR 'Maximum Payload Violation'\r\n")
            break

    with serving(serve) as port, pytest.raises(BenchError, match="Maximum Payload"):
        append("nats", port, count=5)


def test_a_stream_of_nats_is_created_anew_for_the_subjects_of_a_topic():
    seen = []

    def serve(peer, stream):
        for subject, inbox, payload in nats_publishes(peer, stream):
            seen.append((subject.decode(), payload.decode()))
            peer.sendall(b"MSG %b 1 2\r\n{}\r\n" % inbox)
            break

    with serving(serve, connections=2) as port:
        clear_nats(port, "T")
    assert [subject for subject, _ in seen] == [
        "$JS.API.STREAM.DELETE.BENCH", "$JS.API.STREAM.CREATE.BENCH"
    ]  # fmt: skip
    assert re.search(r'"subjects": \["T\.>"\].*"storage": "file"', seen[1][1])


def test_a_refused_call_is_named():
    def refuse(peer, stream):
        stream.readline()
        peer.sendall(b"-ERR 'no'\r\n")

    with serving(refuse) as port, pytest.raises(BenchError, match="refused"):
        clear_redis(port, "T")
    with serving(refuse) as port, pytest.raises(BenchError, match="X refused"):
        call_nats(port, "X", {})


def test_rivals_are_columns_of_the_table():
    rates = {"comet": 100_000.0, "java": 50_000.0, "redis": 200_000.0, "nats": 25_000.0}
    samples = {
        "send-64x1": {name: [{"messages_per_s": rate}] for name, rate in rates.items()},
        "pull": {name: [{"messages_per_s": 1.0}] for name in ("comet", "java")},
    }
    options = {"rounds": 1, "seconds": 2.0}
    result = report.make_result(samples, {}, options=options, measured_at="2026-02-02")
    text = report.table(result)
    assert re.search(r"Redis +NATS +target", text)
    assert re.search(r"100,000 +50,000 +2\.000 +- +200,000 +25,000 +>= 2\.2x MISSED", text)
    markdown = page.markdown(result)
    assert "Each cell: CometMQ · Java · Redis · NATS" in markdown
    loads = "100,000 · 50,000 · 200,000 · 25,000 (2.00 x, missed >= 2.2x, behind Redis)"
    assert f"| {loads} |" in markdown
    assert "| 1 · 1 (1.00 x, missed >= 2x) |" in markdown
