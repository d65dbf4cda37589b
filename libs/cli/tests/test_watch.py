# SPDX-License-Identifier: Apache-2.0
"""`lag --watch` shows the lag again and again."""

import asyncio
import gc
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import typer

from cometmq.cli import watching
from cometmq.cli.connecting import EXIT_INTERRUPTED
from cometmq.cli.connecting import run as run_command
from cometmq.cli.outcome import MISSING
from cometmq.cli.say import say
from cometmq.cli.streams import OutputClosed
from cometmq.client.errors import ClientError
from cometmq.peers.comet import PROGRAM

TIMEOUT_S = 180
CLEAR = "\x1b[H\x1b[2J"


class EndOfTest(Exception):
    pass


@pytest.fixture
def rounds(monkeypatch):
    """Make the third pause end the test instead of waiting; return the pauses so far."""
    pauses = []

    def pause(waiting):
        waiting.close()
        pauses.append(waiting)
        if len(pauses) == 3:
            raise EndOfTest

    monkeypatch.setattr(watching, "run", pause)
    yield pauses
    MISSING.clear()


def watch(outcomes, *, as_json=False):
    """Watch a command whose rounds have these outcomes: an error, or the text that it prints."""
    left = iter(outcomes)

    def ask():
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return lambda: say(outcome)

    watching.watch(ask, 2, as_json=as_json)


def test_in_a_pipe_the_answers_follow_each_other(rounds, capsys):
    with pytest.raises(EndOfTest):
        watch(["one", "two", "three"])
    lines = capsys.readouterr().out.splitlines()
    assert [lines[number] for number in (1, 2, 4, 5, 7)] == ["one", "", "two", "", "three"]
    assert all(lines[number].endswith("Z") for number in (0, 3, 6)), "the times"
    assert len(rounds) == 3


def test_in_json_only_the_documents_are_printed(rounds, capsys):
    with pytest.raises(EndOfTest):
        watch(["{}", "{}", "{}"], as_json=True)
    assert capsys.readouterr().out == "{}\n{}\n{}\n"
    assert len(rounds) == 3


def test_an_error_ends_the_command_only_before_the_first_answer(rounds, capsys):
    with pytest.raises(ClientError, match="at once"):
        watch([ClientError("at once")])
    with pytest.raises(EndOfTest):
        watch(["one", ClientError("later"), typer.Exit(1)])
    assert capsys.readouterr().err == "cometmq: later\n"
    del rounds[:]
    with pytest.raises(typer.Exit):
        watch(["one", typer.Exit(2)])


def test_brokers_that_are_missing_are_named_in_each_round(rounds, capsys):
    def ask():
        MISSING["a"] = "broker a is down"
        return lambda: None

    with pytest.raises(EndOfTest):
        watching.watch(ask, 2, as_json=True)
    assert capsys.readouterr().err == "cometmq: broker a is down\n" * len(rounds)


class Finalized:
    """An object whose finalizer is interrupted by Ctrl-C; Python discards what it raises."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


class CleanUpFailed(ClientError):
    """The error of a command that a signal has cancelled."""


async def cancelled_in_vain():
    signal.raise_signal(signal.SIGINT)
    try:
        await asyncio.sleep(TIMEOUT_S)
    finally:
        raise CleanUpFailed("the connection is closed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallow", [Finalized, lambda: run_command(cancelled_in_vain())])
def test_a_signal_is_kept_whoever_swallows_it(rounds, swallow):
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def ask():
        if rounds:
            swallow()
        return lambda: None

    try:
        with pytest.raises(KeyboardInterrupt):
            watching.watch(ask, 2, as_json=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(rounds) == 1


def test_a_closed_output_ends_the_command(rounds, capsys):
    with pytest.raises(OutputClosed):
        watch(["one", OutputClosed("the reader of the output is gone")])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("every", ["0.2", "3600"])
def test_a_closed_pipe_ends_the_command_like_others(suite, every):
    script = '"$0" cluster --watch "$2" -n "$1" | head -1 >/dev/null; echo ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["bash", "-c", script, str(PROGRAM), suite.namesrv, every],
        capture_output=True, timeout=TIMEOUT_S, check=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{128 + signal.SIGPIPE}\n", "")


INTERRUPTED_LOOP = """
import asyncio, os, signal, sys, typer
from cometmq.cli.connecting import run

class Loop(asyncio.SelectorEventLoop):
    is_interrupted = False

    def call_soon(self, callback, *args, **options):
        handle = super().call_soon(callback, *args, **options)
        if not self.is_interrupted and sys.argv[1] in repr(callback):
            self.is_interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        return handle

try:
    run(asyncio.sleep(float(sys.argv[2])), loop_factory=Loop)
except typer.Exit as end:
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    print(end.exit_code)
"""


@pytest.mark.parametrize(
    ("callback", "sleep_s"), [("", "10"), ("_run_until_complete_cb", "0.01")], ids=["begin", "end"]
)
def test_ctrl_c_may_come_while_a_task_begins_or_ends(callback, sleep_s):
    command = [sys.executable, "-c", INTERRUPTED_LOOP, callback, sleep_s]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True, text=True)
    assert (done.stdout, done.stderr) == (f"{EXIT_INTERRUPTED}\n", "")


def test_lag_is_watched_until_ctrl_c(suite, ask, topic):
    ask("produce", topic, "a", "b")
    args = ("consume", topic, "-g", topic, "--from", "first", "--max", 1, "--timeout", 60)
    assert ask(*args).status == 0
    command = [str(PROGRAM), "lag", topic, "--watch", "0.1", "-n", suite.namesrv, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        documents: list[list[bytes]] = [[], []]
        for document in documents:
            while not document or document[-1] != b"}\n":
                document.append(process.stdout.readline())
                assert document[-1], process.stderr.read()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr.read() == b""
    assert [json.loads(b"".join(it))["lag"] for it in documents] == [1, 1]


def test_a_terminal_is_redrawn(suite):
    master, slave = pty.openpty()
    command = [str(PROGRAM), "lag", "--watch", "0.1", "-n", suite.namesrv]
    shown, deadline = "", time.monotonic() + TIMEOUT_S

    def read_until(count):
        nonlocal shown
        while shown.count(CLEAR) < count:
            assert time.monotonic() < deadline, shown
            shown += os.read(master, 1 << 16).decode()

    with subprocess.Popen(command, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        try:
            read_until(3)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # EIO: the process has ended
                read_until(100)
            assert process.wait(TIMEOUT_S) == 130, shown
        finally:
            process.kill()
            os.close(master)
    first, second = shown.split(CLEAR)[1:3]
    assert first.splitlines()[0].endswith("Z; again every 0.1 s, Ctrl-C ends")
    assert first.splitlines()[1] == second.splitlines()[1]


def test_a_report_is_not_watched(call):
    refused = call("lag", "--report", "x.html", "--watch", 1)
    refused.assert_refused(2, "give --report or --watch, not both")


def test_a_signal_in_the_last_step_of_a_round_ends_the_command():
    async def main():
        signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(typer.Exit) as ended:
            run_command(main())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ended.value.exit_code == EXIT_INTERRUPTED


@pytest.mark.filterwarnings("error")
def test_a_signal_waits_until_the_event_loop_of_a_command_is_complete():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a command, not in a test run
    made = []

    def loop_factory():
        signal.raise_signal(signal.SIGINT)
        made.append(asyncio.new_event_loop())
        return made[0]

    async def main():
        raise AssertionError("the command has begun")

    with pytest.raises(typer.Exit) as ended:
        run_command(main(), loop_factory=loop_factory)
    gc.collect()  # would report a coroutine that has not begun
    assert ended.value.exit_code == EXIT_INTERRUPTED
    (loop,) = made
    loop.close()
