# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: TID251, TRY301  # these tests act as libraries that log
"""Each event becomes one JSON object or one readable line."""

import io
import json
import logging
import subprocess
import sys

import pytest
import structlog

from cometmq.runtime import logging as runtime_logging
from cometmq.runtime.logging import (
    INFO_COUNT_MAX,
    REPEAT_COUNT_MAX,
    REPEAT_WINDOW_MS,
    VALUE_CHARS_MAX,
    RateLimit,
)
from cometmq.testing.runtime.clock import FakeClock


@pytest.fixture
def stream():
    handlers = logging.getLogger().handlers
    yield io.BytesIO()
    runtime_logging.configure(json=True)
    logging.getLogger().handlers = handlers


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_hold_event_level_time_logger_and_facts(stream):
    runtime_logging.configure(json=True, stream=stream)
    runtime_logging.get("broker").info("broker.started", port=1, path=object)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["component"]) == ("broker.started", "info", "broker")
    assert line["port"] == 1
    assert line["timestamp"].endswith("Z")


def test_levels_below_the_chosen_one_are_silent(stream):
    runtime_logging.configure(json=True, stream=stream, level="warning")
    log = runtime_logging.get("broker")
    log.debug("a.done")
    log.info("b.done")
    log.error("c.failed")
    assert [line["event"] for line in lines(stream)] == ["c.failed"]


def test_an_exception_is_a_fact(stream):
    runtime_logging.configure(json=True, stream=stream)
    try:
        raise ValueError("no")
    except ValueError as error:
        runtime_logging.get("x").error("task.failed", exc_info=error)
    assert "ValueError: no" in lines(stream)[0]["exception"]


def test_text_that_is_not_unicode_does_not_break_the_log(stream):
    runtime_logging.configure(json=True, stream=stream)
    runtime_logging.get("x").info("topic.created", topic="\ud800")
    assert "ud800" in lines(stream)[0]["topic"]


def test_console_lines_are_readable(stream):
    runtime_logging.configure(json=False, stream=stream)
    runtime_logging.get("broker").info("broker.started", port=10911, topic="\ud800")
    text = stream.getvalue().decode()
    assert "broker.started" in text
    assert "10911" in text


@pytest.mark.parametrize(
    "name", ["\x1b]0;title\x07", "a\x00b", "\u202eevil", "\x9b2J", "a\rb", "\ud800"]
)
def test_a_name_cannot_control_the_terminal_of_a_reader(stream, name):
    runtime_logging.configure(json=False, stream=stream)
    log = runtime_logging.get("x")
    log.warning("login.refused", user=name, users=[name])
    log.warning("login.refused", user=f"{name}\n1970 forged line")
    try:
        raise ValueError(name)
    except ValueError as error:
        runtime_logging.get("x").error("task.failed", exc_info=error)
    text = stream.getvalue().decode()
    assert text.replace("\n", "").isprintable()
    assert ascii(name)[1:-1] in text
    assert "\n1970" not in text
    assert text.count("\nValueError: ") == 1


def test_loggers_of_the_standard_library_end_in_the_same_log(stream):
    runtime_logging.configure(json=True, stream=stream)
    try:
        raise OSError("gone")
    except OSError:
        logging.getLogger("asyncio").exception("bad %s", "thing")
    logging.getLogger("other").warning("hm")
    logging.getLogger("other").info("silent")
    first, second = lines(stream)
    assert (first["event"], first["component"]) == ("library.reported", "asyncio")
    assert (first["message"], first["error"]) == ("bad thing", "OSError: gone")
    assert second["level"] == "warning"


@pytest.mark.parametrize("method", ["warning", "error"])
def test_equal_events_are_limited_and_the_rest_counted(method):
    clock = FakeClock()
    limit = RateLimit(clock)
    for _ in range(REPEAT_COUNT_MAX):
        limit(None, method, {"event": "a"})
    for _ in range(3):
        with pytest.raises(structlog.DropEvent):
            limit(None, method, {"event": "a"})
    limit(None, method, {"event": "b"})
    for _ in range(INFO_COUNT_MAX):
        limit(None, "info", {"event": "a"})
    with pytest.raises(structlog.DropEvent):
        limit(None, "info", {"event": "a"})
    limit(None, "debug", {"event": "a"})
    limit(None, method, {"event": "a", "task": "b"})
    clock.advance(REPEAT_WINDOW_MS)
    for counted in ({"suppressed_count": 3}, {}):
        assert limit(None, method, {"event": "a"}) == {"event": "a"} | counted


def test_all_damaged_places_are_logged():
    limit = RateLimit(FakeClock())
    for event in ("log.damaged", "records.damaged"):
        for _ in range(3 * REPEAT_COUNT_MAX):
            assert limit(None, "error", {"event": event})


def test_facts_of_the_context_are_in_every_line(stream):
    runtime_logging.configure(json=True, stream=stream)
    with structlog.contextvars.bound_contextvars(request="17"):
        runtime_logging.get("x").info("a.done")
    runtime_logging.get("x").info("b.done")
    assert [line.get("request") for line in lines(stream)] == ["17", None]


@pytest.mark.parametrize("is_json", [True, False])
def test_a_long_text_is_cut(stream, is_json):
    """A name server logs the topics that anyone deletes, and names have up to 64 KB."""
    runtime_logging.configure(json=is_json, stream=stream)
    runtime_logging.get("namesrv").info("topic.deleted", topic="x" * 65_000, cluster="c")
    text = stream.getvalue().decode()
    assert "... (65000 characters)" in text
    assert len(text) < VALUE_CHARS_MAX + 300


def test_the_log_loads_without_rich_and_does_not_break_it():
    code = (
        "import sys, cometmq.runtime.logging as log\n"
        "print('rich' in sys.modules)\n"
        "log.configure(json=False)\n"
        "log.get('x').info('a.done', error='b')\n"
        "import rich.console\n"
        "print(rich.console.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "rich.console"]
    assert "a.done" in done.stderr
