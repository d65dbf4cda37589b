# SPDX-License-Identifier: Apache-2.0
"""The HTTP port answers probes and scrapes, and limits what a peer can consume."""

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime import admin_http
from cometmq.runtime.admin_http import (
    ACCEPTED_AT_ONCE,
    HEAD_BYTES_MAX,
    AdminHttp,
    Answer,
    _Connection,
    _SharedPage,
)
from cometmq.runtime.metrics import Registry


@pytest.fixture
async def admin():
    http = AdminHttp()
    await http.start(0, host="127.0.0.1")
    yield http
    await http.stop()


def read_all(one):
    """Read what arrives after the server has given up."""
    time.sleep(0.4)
    data = b""
    with one, contextlib.suppress(ConnectionError):
        while part := one.recv(1 << 20):
            data += part
    return data


async def exchange(http, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


async def test_metrics_are_served(admin):
    head, body = await exchange(admin, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert f"Content-Length: {len(body)}" in head
    assert b"cometmq_loop_lag_seconds_bucket" in body


async def test_a_scraper_gets_the_format_that_it_asks_for(admin, tmp_path):
    (tmp_path / "a.prom").write_text("# HELP c_total C.\n# TYPE c_total counter\nc_total 1\n")
    admin.add_metrics_file(tmp_path / "a.prom")
    parsers = {"text/plain": plain, "application/openmetrics-text": openmetrics}
    names = []
    for kind, parse in parsers.items():
        request = (
            f"GET /metrics HTTP/1.1\r\naccept: image/png\r\nAccept:{kind};version=1.0.0\r\n\r\n"
        )
        head, body = await exchange(admin, request.encode())
        assert f"\r\nContent-Type: {kind}; version=1.0.0; charset=utf-8\r\n" in head
        names.append([(it.name, it.type) for it in parse(body.decode())])
    assert names[0] == names[1]
    assert ("c", "counter") in names[0]


class Kept:
    """A source of two families, the second of which notes what is left of the first."""

    def __init__(self):
        self.left = []

    def collect(self):
        first, second = GaugeMetricFamily("first", "."), GaugeMetricFamily("second", ".")
        for number in range(1_000):
            first.add_metric((), number)
        samples = first.samples

        note = self.left.append

        class Noting(float):
            def __ge__(self, other):  # a comparison of the renderer
                note((len(samples), threading.current_thread().name))
                return float.__ge__(self, other)

        second.add_metric((), Noting(1))
        yield first
        yield second


async def test_a_scrape_is_freed_by_its_thread_family_by_family():
    """The loop freed all samples at once: 10 ms, if there are 42,000."""
    http, source = AdminHttp(Registry(has_process_metrics=False)), Kept()
    http.registry.add(source)
    answer = await http.answer("GET", "/metrics")
    assert answer.body.count(b"\nfirst ") == 1_000
    assert b"\nsecond 1.0\n" in answer.body
    ((left_count, thread),) = source.left
    assert left_count == 0
    assert thread != threading.main_thread().name


async def test_files_of_metrics_are_appended_once_they_exist(tmp_path):
    written, later, folder = tmp_path / "a.prom", tmp_path / "b.prom", tmp_path / "c.prom"
    written.write_text("lag 1\n")
    folder.mkdir()
    http = AdminHttp()
    for path in (written, later, folder):
        http.add_metrics_file(path)
    assert (await http.answer("GET", "/metrics")).body.endswith(b"\nlag 1\n")
    written.write_text("lag 2\n")
    later.write_text("age 3\n")
    assert (await http.answer("GET", "/metrics")).body.endswith(b"\nlag 2\nage 3\n")


async def test_head_has_no_body(admin):
    head, body = await exchange(admin, b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert body == b""


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /" + b"x" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
async def test_other_requests_are_refused(admin, request_head, status):
    head, _ = await exchange(admin, request_head)
    assert head.startswith(f"HTTP/1.1 {status} ")


async def test_a_peer_that_never_asks_is_closed(admin, monkeypatch):
    monkeypatch.setattr(admin_http, "REQUEST_TIMEOUT_S", 0.02)
    assert await exchange(admin, b"GET /metr") == ("", b"")


async def test_a_connection_too_many_is_dropped(admin, monkeypatch):
    monkeypatch.setattr(admin_http, "CONNECTION_COUNT_MAX", 0)
    with pytest.raises(ConnectionResetError):
        await exchange(admin, b"GET /healthz HTTP/1.1\r\n\r\n")
    monkeypatch.undo()
    head, _ = await exchange(admin, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ")


async def test_silent_connections_keep_no_health_check_out(admin):
    silent = []
    loop = asyncio.get_running_loop()
    for number in range(1_000):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", admin.port))
        if number % 3 == 0:
            one.send(b"GET /healthz HTT")  # a head that is never completed
        silent.append(one)
        if number % 20 == 0:
            async with asyncio.timeout(60):
                head, _ = await exchange(admin, b"GET /healthz HTTP/1.1\r\n\r\n")
            assert head.startswith("HTTP/1.1 200 ")
    assert len(admin._served) <= admin_http.CONNECTION_COUNT_MAX
    for one in silent:
        one.close()


async def test_a_turn_of_the_loop_accepts_few_connections_and_answers_one_request(admin):
    turns, answered, connected = 0, [], []
    admin.add_ready_check("turns", lambda: answered.append(turns))
    flood = [socket.create_connection(("127.0.0.1", admin.port)) for _ in range(100)]
    for one in flood:
        one.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        one.setblocking(False)
    async with asyncio.timeout(30):
        while len(answered) < len(flood):
            await asyncio.sleep(0)
            turns += 1
            connected.append(len(admin._served) + len(answered))
    for one in flood:
        one.close()
    assert max(Counter(answered).values()) == 1
    assert max(b - a for a, b in pairwise([0, *connected])) <= ACCEPTED_AT_ONCE + 1


@pytest.mark.parametrize(
    ("states", "host", "closed"),
    [
        (["a silent", "b silent", "b silent", "c silent"], "a", 1),
        (["a silent", "b asked", "b unread", "b unread"], "b", 2),
        (["a silent", "b asked", "b asked"], "b", None),  # it has the most itself
        (["a silent", "b asked", "b asked"], "a", 1),
        (["a silent", "b asked", "b asked"], "c", 1),
        (["a asked", "b asked"], "b", None),
        ([], "a", None),
    ],
)
async def test_the_address_with_the_most_connections_loses_one(admin, states, host, closed):
    nobody: Any = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.sleep(60)) for _ in states]
        for task, state in zip(tasks, states, strict=True):
            owner, kind = state.split()
            admin._served[task] = _Connection(nobody, owner, kind == "silent", kind == "unread")
        assert admin._make_room(host) == (closed is not None)
        left = list(admin._served)
        admin._served.clear()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.cancelled() for task in tasks] == [n == closed for n in range(len(tasks))]
        assert left == [task for n, task in enumerate(tasks) if n != closed]
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_unread_answers_keep_no_health_check_out(loop_factory, monkeypatch):
    monkeypatch.setattr(admin_http, "CONNECTION_COUNT_MAX", 8)
    errors = []

    async def flooded(stack):
        http = AdminHttp()
        http.add_settings("large", lambda: "x" * (16 << 20))
        await http.start(0, host="127.0.0.1")
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        for _ in range(8):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", http.port)))
            client.sendall(b"GET /settings HTTP/1.1\r\n\r\n")
        while sum(one.is_unread for one in http._served.values()) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for left in (7, 7, 7):
            head, _ = await exchange(http, b"GET /healthz HTTP/1.1\r\n\r\n")
            assert head.startswith("HTTP/1.1 200 ")
            while len(http._served) > left:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await http.stop()

    with contextlib.ExitStack() as stack, asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(flooded(stack), 60))
    assert errors == []


async def test_requests_that_wait_share_a_page_that_is_built_after_they_asked(monkeypatch):
    monkeypatch.setattr(admin_http, "REST_FACTOR", 0)
    count = 0

    async def build(_is_second):
        nonlocal count
        count += 1
        page = Answer(HTTPStatus.OK, b"%d" % count)
        await asyncio.sleep(0.01)
        return page

    page = _SharedPage(build)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        assert (await page.get()).body == b"1"
        first = group.create_task(page.get())
        while count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting = [group.create_task(page.get()) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # before it begins to build
    assert first.result().body == b"2"
    assert {task.result().body for task in waiting[1:]} == {b"3"}
    assert (await page.get()).body == b"4"
    assert page._forms[0].page is None


async def test_a_page_is_built_during_a_part_of_the_time(admin):
    built_s = 0.0

    def slow():
        nonlocal built_s
        start_s = time.monotonic()
        time.sleep(0.02)
        built_s += time.monotonic() - start_s
        return ""

    admin.add_settings("slow", slow)

    async def ask_again():
        while True:
            await admin.answer("GET", "/settings")

    start_s = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(ask_again())
    passed_s = time.monotonic() - start_s
    assert 0.02 < built_s < passed_s / admin_http.REST_FACTOR


async def test_a_page_that_fails_is_built_again(admin):
    texts = iter([None, "right"])

    def text():
        return next(texts) or 1 / 0

    admin.add_settings("page", text)
    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await admin.answer("GET", "/settings")
        assert (await admin.answer("GET", "/settings")).body == b"# page\nright"


async def test_a_peer_that_does_not_read_its_answer_is_closed(admin, monkeypatch):
    monkeypatch.setattr(admin_http, "REQUEST_TIMEOUT_S", 0.2)
    admin.add_settings("large", lambda: "x" * (16 << 20))
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", admin.port))
    one.send(b"GET /settings HTTP/1.1\r\n\r\n")
    aborted = await asyncio.wait_for(asyncio.to_thread(read_all, one), 30)
    assert 0 < len(aborted) < 16 << 20
    assert not admin._served


def test_a_client_that_is_gone_costs_no_page_and_no_error():
    """uvloop, which the programs use, raises an error if a closed connection is written to."""
    pages, errors = [], []

    async def reset():
        http = AdminHttp()
        http.add_settings("page", lambda: str(pages.append(1)))
        await http.start(0, host="127.0.0.1")
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with asyncio.timeout(60), http._turns.hold(Requester("another address")):
            for _ in range(5):
                client = socket.create_connection(("127.0.0.1", http.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(b"GET /settings HTTP/1.1\r\n\r\n")
                while not http._turns._waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                client.close()
                for _ in range(3):  # the kernel has passed the reset on
                    await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while http._served:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await http.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(reset())
    assert (pages, errors) == ([], [])


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stop_ends_every_connection_and_its_request(loop_factory, monkeypatch):
    monkeypatch.setattr(admin_http, "STOP_S", 0.05)
    errors = []

    async def stopped():
        http = AdminHttp()
        await http.start(0, host="127.0.0.1")
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        clients = []
        async with (
            asyncio.timeout(60),
            asyncio.TaskGroup() as group,
            http._turns.hold(Requester("another address")),
        ):
            for head in [b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /metrics"] * 5:
                clients.append(socket.create_connection(("127.0.0.1", http.port)))
                clients[-1].sendall(head)
            while Counter(one.is_silent for one in http._served.values()) != {True: 5, False: 5}:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            group.create_task(http.stop())
            while not all(one.writer.is_closing() for one in http._served.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return clients

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        clients = runner.run(stopped())
    assert errors == []
    for one in clients:
        one.settimeout(60)
        with one, contextlib.suppress(ConnectionError):
            assert one.recv(1) == b""


async def test_readiness_follows_its_checks_and_liveness_does_not():
    http = AdminHttp()
    reasons: dict[str, str | None] = {"store": None}
    http.add_ready_check("store", lambda: reasons["store"])
    http.add_ready_check("loop", lambda: None)
    assert (await http.answer("GET", "/readyz?x=1")).status is HTTPStatus.OK
    reasons["store"] = "disk is full"
    ready = await http.answer("GET", "/readyz")
    assert ready.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(ready.body) == {
        "status": "failing",
        "checks": {"store": "disk is full", "loop": "ok"},
    }
    assert (await http.answer("GET", "/healthz")).status is HTTPStatus.OK


async def test_a_warning_is_shown_without_failing_readiness():
    http = AdminHttp()
    failures: dict[str, str | None] = {"accounts": None}
    warnings: dict[str, str | None] = {"accounts": None}
    http.add_ready_check("accounts", lambda: failures["accounts"])
    http.add_ready_warning("accounts", lambda: warnings["accounts"])
    assert await shown(http) == (HTTPStatus.OK, "ok", "ok")
    warnings["accounts"] = "a file is broken"
    assert await shown(http) == (HTTPStatus.OK, "ok", "a file is broken")
    failures["accounts"] = "there is no account"
    expected = (HTTPStatus.SERVICE_UNAVAILABLE, "failing", "there is no account")
    assert await shown(http) == expected
    assert (await http.answer("GET", "/healthz")).body == b'{"status":"ok","checks":{}}\n'


async def shown(http: AdminHttp) -> tuple[HTTPStatus, str, str]:
    ready = await http.answer("GET", "/readyz")
    body = json.loads(ready.body)
    return ready.status, body["status"], body["checks"]["accounts"]


async def test_the_root_lists_every_page():
    http = AdminHttp()
    root = await http.answer("GET", "/")
    pages = [line.split()[0] for line in root.body.decode().splitlines()]
    assert (root.status, pages) == (HTTPStatus.OK, ["/metrics", "/healthz", "/readyz", "/settings"])
    for page in pages:
        assert (await http.answer("GET", page)).status is HTTPStatus.OK


async def test_settings_of_every_part_are_shown():
    http = AdminHttp()
    http.add_settings("namesrv", lambda: "listenPort=9876\n")
    http.add_settings("broker", lambda: "listenPort=10911\n")
    body = (await http.answer("GET", "/settings")).body.decode()
    assert body == "# namesrv\nlistenPort=9876\n\n# broker\nlistenPort=10911\n"


async def test_a_taken_port_names_port_and_setting(admin):
    other = AdminHttp()
    with pytest.raises(SettingsError, match=f"{admin.port}.*another with adminHttpPort"):
        await other.start(admin.port, host="127.0.0.1")
    await other.stop()
