# SPDX-License-Identifier: Apache-2.0
"""Unwritable output, closed streams and Ctrl-C print few lines, never a traceback."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.input import read_lines
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_port

from .on_terminal import OnTerminal

TIMEOUT_S = 180
# Commands that print something, given a topic that has a message
ASKING = [
    ["topic", "list"],
    ["topic", "list", "--json"],
    ["group", "list"],
    ["cluster"],
    ["lag"],
    ["consume", "{topic}", "--from", "first", "--max", "1"],
    ["consume", "{topic}", "--from", "first", "--count", "1", "--json"],
    ["dlq", "list"],
    ["txn", "list"],
    ["topicList"],
    ["clusterList"],
    ["topicStatus", "-t", "{topic}"],
]


def run(command, *, shell_suffix, stdin=subprocess.DEVNULL):
    """Run a command with shell redirections."""
    script = f'"$0" "$@" {shell_suffix}'
    return subprocess.run(
        ["bash", "-c", script, str(PROGRAM), *command],
        stdin=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )


def assert_one_line(done, reason):
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"cometmq: cannot write to standard output: {reason}\n"


FULL, CLOSED = ">/dev/full", ">&-"
UNWRITABLE = [(FULL, "No space left on device"), (CLOSED, "it is closed")]


def run_unwritable(command, redirection):
    """Run a command whose output is redirected; only a shell starts one without an output."""
    if redirection == CLOSED:
        return run(command, shell_suffix=CLOSED)
    with Path("/dev/full").open("wb") as full:
        return subprocess.run(
            [str(PROGRAM), *command], stdin=subprocess.DEVNULL, stdout=full,
            stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False, text=True,
        )  # fmt: skip


@pytest.mark.parametrize(("redirection", "reason"), UNWRITABLE)
def test_output_that_cannot_be_written_is_one_line(suite, ask, topic, redirection, reason):
    ask("produce", topic, "body")
    for template in ASKING:
        command = [part.format(topic=topic) for part in template]
        done = run_unwritable([*command, "-n", suite.namesrv], redirection)
        assert_one_line(done, reason)
    for command in (["topic", "--help"], ["--version"], ["store", "dump", str(suite.data)]):
        assert_one_line(run_unwritable(command, redirection), reason)


@pytest.mark.parametrize(("redirection", "reason"), UNWRITABLE)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_produce_counts_the_stored_messages_if_its_output_cannot_be_written(
    suite, ask, topic, redirection, reason, form
):
    command = ["produce", topic, "one", "two", *form, "-n", suite.namesrv]
    done = run_unwritable(command, redirection)
    stored = sum(row["messages"] for row in ask("topic", "describe", topic, "--json").json)
    assert (done.returncode, stored) == (1, 2)
    assert done.stderr.splitlines() == [
        "cometmq: 2 messages stored before the error",
        f"cometmq: cannot write to standard output: {reason}",
    ]


def test_a_closed_pipe_ends_a_command_silently(suite, ask, topic):
    ask("produce", topic, "body", "--count", 100)
    endless = ["consume", topic, "--from", "first", "-n", suite.namesrv, "--timeout", "30"]
    commands = [endless, ["topic", "list", "-n", suite.namesrv], ["store", "dump", str(suite.data)]]
    for command in commands:
        done = run(command, shell_suffix="| true; echo ${PIPESTATUS[0]}")
        assert done.stderr == ""
        assert int(done.stdout) in {128 + signal.SIGPIPE, 0}, command
    done = run(endless, shell_suffix="| (exec <&-; true); echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == (f"{128 + signal.SIGPIPE}\n", "")


def test_closed_streams_are_no_traceback(suite, topic):
    for redirection in ("<&-", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"):
        done = run(["topic", "list", "-n", suite.namesrv], shell_suffix=redirection)
        assert "Traceback" not in done.stderr
        assert done.returncode == (1 if ">&- " in redirection else 0)
    done = run(["produce", topic, "-n", suite.namesrv], shell_suffix="<&-")
    assert "Traceback" not in done.stderr


def test_a_refusal_while_input_is_read_is_one_line(suite, topic):
    reader, writer = os.pipe()
    os.write(writer, b"x" * 100 + b"\n")  # never closed
    try:
        done = run(
            ["produce", topic, "--json-lines", "-n", suite.namesrv], shell_suffix="", stdin=reader
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 2
    assert done.stderr.startswith("cometmq: ")
    assert done.stderr.count("\n") == 1


def test_a_server_that_refuses_while_input_flows_is_one_line(suite, ask, topic):
    ask("updateTopic", "-t", topic, "-b", suite.broker, "-p", 4, "-r", 2, "-w", 2)  # read only
    script = 'yes | head -c 20000000 | "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", script, str(PROGRAM), "produce", topic, "-n", suite.namesrv],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cometmq: ")
    assert done.stderr.count("\n") == 1


def test_an_abandoned_line_reader_ends_silently(monkeypatch):
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    async def take_one(descriptor):
        lines = read_lines(descriptor)
        line = await anext(lines)
        turns = 0
        while turns < 50:  # a put that does not block ends within two turns
            turns = turns + 1 if len(asyncio.all_tasks()) == 2 else 0
            await asyncio.sleep(0)
        return line

    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as source:
        assert source.stdout
        assert asyncio.run(take_one(source.stdout.fileno())) == b"y"
        for thread in threading.enumerate():
            if thread.name == "read-lines":
                thread.join(TIMEOUT_S)
        source.kill()
    assert raised == []


def test_the_time_to_read_a_line_is_proportional_to_its_length(tmp_path):
    async def read(file):
        began_s = time.thread_time()
        lines = [line async for line in read_lines(file.fileno())]
        spent_s = time.thread_time() - began_s
        assert [len(line) for line in lines] == [size, 3]
        return spent_s

    spent_s = {}
    for size in (2 << 20, 32 << 20):
        path = tmp_path / str(size)
        path.write_bytes(b"x" * size + b"\nend")
        with path.open("rb") as file:
            spent_s[size] = asyncio.run(read(file))
    assert spent_s[32 << 20] < 64 * spent_s[2 << 20]  # 16 times, or 256 if it were quadratic


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("stdout", [None, subprocess.DEVNULL])
def test_a_waiting_consumer_says_so_on_a_terminal(suite, topic, is_member, stdout):
    group = ["-g", f"g-{topic}"] if is_member else []
    consumer = OnTerminal("consume", topic, *group, "-n", suite.namesrv, stdout=stdout)
    consumer.wait_for(f"waiting for messages on {topic}, Ctrl-C to exit")
    assert consumer.interrupt() == 130
    assert "Traceback" not in consumer.shown
    assert "undrained" not in consumer.shown


def test_a_producer_shows_its_progress_on_a_terminal_only(suite, topic, pipe):
    arguments = ("produce", topic, "x", "--count", 10**9, "--rate", 1_000)
    producer = OnTerminal(*arguments, "-n", suite.namesrv)
    producer.wait_for("of 1,000,000,000")
    assert producer.interrupt() == 130
    assert "per second" in producer.shown
    assert "Traceback" not in producer.shown
    quiet = pipe("produce", topic, "x", "--count", 1_000, "--rate", 1_000)  # for a second
    assert (quiet.status, quiet.err) == (0, "")


def test_a_consumer_shows_its_progress_while_its_output_goes_elsewhere(suite, topic, ask):
    ask("produce", topic, "x", "--count", 10)
    consumer = OnTerminal("consume", topic, "--from", "first", "-n", suite.namesrv)
    consumer.wait_for("10 messages")
    assert consumer.interrupt() == 130


def test_a_consumer_in_a_pipe_says_nothing(pipe, topic):
    done = pipe("consume", topic, "--timeout", 1.5)
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("tail", [1, 2, 7])
def test_a_member_that_ends_drains_and_leaves_the_rest(pipe, topic, tail):
    group = f"ends-{topic}"
    bodies = [str(number) for number in range(9)]
    pipe("produce", topic, *bodies, "--in-flight", 1)
    first = pipe("consume", topic, "-g", group, "--from", "first", "--max", 9 - tail)
    assert (first.status, first.err) == (0, "")
    rest = pipe("consume", topic, "-g", group, "--max", tail)
    assert (rest.status, rest.err) == (0, "")
    assert sorted(first.out.split() + rest.out.split()) == bodies


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["consume", "T", "-g", "g"],
        ["produce", "T", "x"],
        ["lag"],
        ["cluster"],
    ],
)
def test_ctrl_c_never_gives_a_traceback(command):
    """No server listens at the address, so each command is importing modules or retrying."""
    for delay_s in (0.05, 0.2, 0.5):
        child = OnTerminal(*command, "-n", f"127.0.0.1:{free_port()}")
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline and child.process.poll() is None:
            time.sleep(0.005)
        child.process.send_signal(signal.SIGINT)
        child.end()
        # Until our `main` runs, we cannot catch Ctrl-C; the interpreter's `site` also has a `main`.
        ours = re.search(r'File "[^"<]*cometmq[^"]*", line \d+, in main', child.shown)
        assert ours is None, child.shown


def test_ctrl_c_while_the_interpreter_ends_gives_no_traceback():
    program = (
        "import sys, threading, time; from cometmq.cli.entry import main;"
        "threading.Thread(target=time.sleep, args=(5,)).start();"
        "sys.argv = ['cometmq', '--version']; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", program], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        shown = child.stdout.readline()
        time.sleep(0.2)  # else it may be handled before the end: no traceback either
        child.send_signal(signal.SIGINT)
        shown += child.stdout.read()
    assert shown.count("\n") == 1, shown
