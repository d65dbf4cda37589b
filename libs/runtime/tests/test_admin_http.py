# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of a program answers probes and scrapes."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from cometmq.remoting.errors import SettingsError
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.http import admin_pages
from cometmq.runtime.http.admin_pages import PAGES, REST_FACTOR, REST_S_MAX, SharedPages
from cometmq.runtime.metrics import Registry
from cometmq.testing.runtime.pages import get


@pytest.fixture
async def admin():
    http = AdminHttp()
    await http.start(0, host="127.0.0.1")
    yield http
    await http.stop()


async def exchange(http, target="/healthz", method="GET"):
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


async def test_pages_are_served_by_the_port(admin):
    head, body = await exchange(admin, "/metrics")
    assert head.startswith("HTTP/1.1 200 OK")
    assert f"content-length: {len(body)}" in head
    assert b"cometmq_loop_lag_seconds_bucket" in body
    head, body = await exchange(admin, method="HEAD")
    assert (head.startswith("HTTP/1.1 200 OK"), body) == (True, b"")


@pytest.mark.parametrize(
    ("method", "target", "status"), [("GET", "/nothing", 404), ("POST", "/metrics", 405)]
)
async def test_other_requests_are_refused(admin, method, target, status):
    head, _ = await exchange(admin, target, method)
    assert head.startswith(f"HTTP/1.1 {status} ")


async def test_silent_connections_keep_no_health_check_out(admin):
    silent, loop = [], asyncio.get_running_loop()
    for number in range(1_200):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", admin.port))
        if number % 3 == 0:
            one.send(b"GET /healthz HTT")  # a head that is never completed
        silent.append(one)
        if number % 40 == 0:
            head, _ = await exchange(admin)
            assert head.startswith("HTTP/1.1 200 ")
    for one in silent:
        one.close()


def test_a_program_that_nobody_asks_does_without_the_server():
    """The import takes 7 MB and half of the time of a start."""
    code = """
import asyncio, sys
from cometmq.runtime.admin_http import AdminHttp
async def main():
    http = AdminHttp()
    await http.start(0)
    await http.stop()
asyncio.run(main())
print([it for it in ("uvicorn", "starlette", "prometheus_client") if it in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_a_taken_port_names_port_and_setting(admin):
    other = AdminHttp()
    with pytest.raises(SettingsError, match=f"{admin.port}.*another with adminHttpPort"):
        await other.start(admin.port, host="127.0.0.1")
    await other.stop()


# -- metrics ------------------------------------------------------------------------------------


async def test_a_scraper_gets_the_format_that_it_asks_for(tmp_path):
    admin, names = AdminHttp(), []
    (tmp_path / "a.prom").write_text("# HELP c_total C.\n# TYPE c_total counter\nc_total 1\n")
    admin.add_metrics_file(tmp_path / "a.prom")
    parsers = {"text/plain": plain, "application/openmetrics-text": openmetrics}
    for kind, parse in parsers.items():
        answer = await get(admin, "/metrics", accept=f"image/png, {kind};version=1.0.0")
        assert answer.headers["content-type"].startswith(f"{kind}; version=1.0.0; charset=utf-8")
        names.append([(it.name, it.type) for it in parse(answer.text)])
    assert names[0] == names[1]
    assert ("c", "counter") in names[0]


async def test_files_of_metrics_are_appended_once_they_exist(tmp_path):
    written, later, wrong = tmp_path / "a.prom", tmp_path / "b.prom", tmp_path / "c.prom"
    written.write_text("lag 1\n")
    wrong.mkdir()
    http = AdminHttp()
    for path in (written, later, wrong):
        http.add_metrics_file(path)
    assert (await get(http, "/metrics")).text.endswith("\nlag 1.0\n")
    written.write_text("lag 2\n")
    later.write_text("age 3\n")
    wrong.rmdir()
    wrong.write_text("no metric at all {")
    found = [line for line in (await get(http, "/metrics")).text.splitlines() if line[0] != "#"]
    assert found[-2:] == ["lag 2.0", "age 3.0"]


class Kept:
    """A source of two families, the second of which notes what is left of the first."""

    def __init__(self) -> None:
        self.left: list[tuple[int, str]] = []

    def collect(self) -> Any:
        first, second = GaugeMetricFamily("first", "."), GaugeMetricFamily("second", ".")
        for number in range(1_000):
            first.add_metric((), number)
        samples, note = first.samples, self.left.append

        class Noting(float):
            def __float__(self) -> float:  # a call of the encoder
                note((len(samples), threading.current_thread().name))
                return float.__float__(self)

        second.add_metric((), Noting(1))
        yield first
        yield second


async def test_a_scrape_is_freed_by_its_thread_family_by_family():
    """The loop freed all samples at once: 10 ms, if there are 42,000."""
    http, source = AdminHttp(Registry(has_process_metrics=False)), Kept()
    http.registry.add(source)
    text = (await get(http, "/metrics")).text
    assert text.count("\nfirst ") == 1_000
    assert "\nsecond 1.0\n" in text
    (left_count, thread), *_ = source.left
    assert left_count == 0
    assert thread != threading.main_thread().name


# -- pages that take long -----------------------------------------------------------------------


async def test_requests_that_wait_share_a_page_that_is_begun_after_they_asked(monkeypatch):
    monkeypatch.setattr(admin_pages, "REST_FACTOR", 0)
    count, shared = 0, SharedPages()

    async def build():
        nonlocal count
        count += 1
        page = b"%d" % count
        await asyncio.sleep(0.01)
        return page

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        assert await shared.get("a", build) == b"1"
        first = group.create_task(shared.get("a", build))
        while count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting = [group.create_task(shared.get("a", build)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    assert first.result() == b"2"
    assert {task.result() for task in waiting[1:]} == {b"3"}
    assert await shared.get("a", build) == b"4"


async def test_a_page_is_built_during_a_part_of_the_time():
    shared, times = SharedPages(), []

    async def build():
        times.append(time.monotonic())
        time.sleep(0.02)  # noqa: ASYNC251
        times.append(time.monotonic())
        return b""

    for _ in range(4):
        await shared.get("slow", build)
    for begin_s, end_s, next_s in zip(times[::2], times[1::2], times[2::2], strict=False):
        assert next_s - end_s >= min((end_s - begin_s) * REST_FACTOR, REST_S_MAX)


async def test_a_page_that_fails_is_built_again():
    admin, texts = AdminHttp(), iter([None, "right"])
    admin.add_settings("page", lambda: next(texts) or str(1 / 0))
    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await get(admin, "/settings")
        assert (await get(admin, "/settings")).text == "# page\nright"


# -- health and settings ------------------------------------------------------------------------


async def test_readiness_follows_its_checks_and_liveness_does_not():
    http = AdminHttp()
    reasons: dict[str, str | None] = {"store": None}
    http.add_ready_check("store", lambda: reasons["store"])
    http.add_ready_check("loop", lambda: None)
    assert (await get(http, "/readyz?x=1")).status_code == 200
    reasons["store"] = "disk is full"
    ready = await get(http, "/readyz")
    shown = {"status": "failing", "checks": {"store": "disk is full", "loop": "ok"}}
    assert (ready.status_code, ready.json()) == (503, shown)
    assert (await get(http, "/healthz")).json() == {"status": "ok", "checks": {}}


async def test_a_warning_is_shown_without_failing_readiness():
    http = AdminHttp()
    failures: dict[str, str | None] = {"accounts": None}
    warnings: dict[str, str | None] = {"accounts": None}
    http.add_ready_check("accounts", lambda: failures["accounts"])
    http.add_ready_warning("accounts", lambda: warnings["accounts"])

    async def shown() -> tuple[int, str, str]:
        ready = await get(http, "/readyz")
        return ready.status_code, ready.json()["status"], ready.json()["checks"]["accounts"]

    assert await shown() == (200, "ok", "ok")
    warnings["accounts"] = "a file is broken"
    assert await shown() == (200, "ok", "a file is broken")
    failures["accounts"] = "there is no account"
    assert await shown() == (503, "failing", "there is no account")


async def test_the_root_lists_every_page():
    http = AdminHttp()
    root = await get(http, "/")
    assert [line.split()[0] for line in root.text.splitlines()] == list(PAGES)
    for page in PAGES:
        assert (await get(http, page)).status_code == 200


async def test_settings_of_every_part_are_shown():
    http = AdminHttp()
    http.add_settings("namesrv", lambda: "listenPort=9876\n")
    http.add_settings("broker", lambda: "listenPort=10911\n")
    body = (await get(http, "/settings")).text
    assert body == "# namesrv\nlistenPort=9876\n\n# broker\nlistenPort=10911\n"
