# SPDX-License-Identifier: Apache-2.0
"""`consume --exec`: a command for each message; its exit status decides what becomes of it."""

import asyncio
import signal
import subprocess
import sys

import pytest
import uvloop

from cometmq.cli.messaging import reply
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

DEADLINE_S = 120


def waiting(ask, topic):
    """Return the bodies of the topic's messages that wait for their next delivery."""
    found = ask("consume", "SCHEDULE_TOPIC_XXXX", "--from", "first", "--no-follow", "--json")
    return [it["body"] for it in found.lines if it.get("body", "").endswith(topic)]


def test_a_command_gets_the_body_and_what_describes_the_message(pipe, ask, topic):
    ask("produce", topic, "body", "-k", "k1", "--tag", "new", "-p", "colour=blue")
    command = (
        'printf "%s %s %s %s %s:" $MESSAGE_TOPIC $MESSAGE_TAG $MESSAGE_KEYS'
        " $MESSAGE_PROPERTY_colour $MESSAGE_RETRIES; cat"
    )
    done = pipe("consume", topic, "--from", "first", "--no-follow", "--exec", command)
    assert (done.status, done.out) == (0, f"{topic} new k1 blue 0:body")


def test_a_message_whose_command_fails_is_retried_and_the_others_are_consumed(pipe, ask, topic):
    ask("produce", topic, "good", f"bad {topic}", "fine")
    args = ("consume", topic, "-g", f"{topic}-group", "--from", "first", "--max", 3)
    done = pipe(*args, "--timeout", 60, "--exec", 'read -r word rest; [ "$word" != bad ] || exit 3')
    assert done.status == 1
    assert done.err.count("the command ended with exit status 3") == 1
    assert waiting(ask, topic) == [f"bad {topic}"]
    lag = ask("lag", f"{topic}-group", "-t", topic, "--json").json
    assert lag["lag"] == 0


@pytest.mark.parametrize(("retries", "dead"), [("0", 1), ("1", 0)])
def test_a_group_that_allows_no_retry_gets_a_dead_letter(pipe, ask, topic, retries, dead):
    """A client sends its own limit with a message, and the broker keeps to that one."""
    group = f"{topic}-group"
    assert ask("group", "create", group, "--retries", retries).status == 0
    ask("produce", topic, f"bad {topic}")
    args = ("consume", topic, "-g", group, "--from", "first", "--max", 1, "--timeout", 60)
    assert pipe(*args, "--exec", "exit 3").status == 1
    assert [it["messages"] for it in ask("dlq", "list", group, "--json").json] == [1] * dead
    assert waiting(ask, topic) == [f"bad {topic}"] * (1 - dead)


def test_a_body_larger_than_a_pipe_need_not_be_read(pipe, ask, topic, tmp_path):
    (tmp_path / "large").write_text("x" * 300_000)
    ask("produce", topic, "-f", tmp_path / "large")
    done = pipe("consume", topic, "--last", 1, "--exec", "true")
    assert (done.status, done.out, done.err) == (0, "", "")


OFTEN = """
import asyncio, uvloop
from cometmq.cli.messaging import reply
from cometmq.testing.client.messages import message_ext

faults = []
message = message_ext(0, bytes(100_000))

async def run_often():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    statuses = {await reply.status("exit 3", message, "MESSAGE_") for _ in range(200)}
    assert statuses == {3}, statuses

uvloop.run(run_often())
assert faults == [], faults
"""


def test_the_end_of_a_command_that_did_not_read_is_no_fault_of_the_loop():
    """uvloop wrote a traceback when the pipe closed after the wait for it had been cancelled.

    uvloop forks, which takes a process with all tests 50 times as long as a small one.
    """
    command = [sys.executable, "-W", "error", "-c", OFTEN]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_has_ended_already_is_given_nothing():
    """On a busy machine; uvloop refuses to write to a closed pipe."""

    async def run():
        process = await asyncio.create_subprocess_shell("exit 3", stdin=subprocess.PIPE)
        assert process.stdin is not None
        while not process.stdin.is_closing():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert await reply._conversation(process, b"body") == b""
        assert await process.wait() == 3

    uvloop.run(run())


def test_a_message_whose_command_is_interrupted_stays_unread(suite, ask, topic, tmp_path):
    ask("produce", topic, f"one {topic}")
    args = ("consume", topic, "-g", f"{topic}-group", "--from", "first")
    mark = tmp_path / "begun"
    command = [str(PROGRAM), *args, "-n", suite.namesrv, "--exec", f"touch {mark}; sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            wait_until(mark.exists, DEADLINE_S, "the command")
            child.send_signal(signal.SIGINT)
            assert child.wait(DEADLINE_S) == 130
        finally:
            child.kill()
    assert ask("lag", f"{topic}-group", "-t", topic, "--json").json["lag"] == 1
    assert waiting(ask, topic) == []


@pytest.mark.parametrize("form", [("--json",), ("--headers",), ("--format", "%v")])
def test_a_command_and_a_form_of_printing_are_refused(ask, form):
    refused = ask("consume", "any", "--exec", "true", *form)
    refused.assert_refused(2, "--exec prints nothing")
