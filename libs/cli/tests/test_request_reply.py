# SPDX-License-Identifier: Apache-2.0
"""`request` and `reply` against a running suite."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

DEADLINE_S = 120
"""A process that starts on a busy machine, and its group's first share of the queues."""


class Replier(subprocess.Popen[bytes]):
    """A running `reply`, with the file of its standard error."""

    errors: Path


@pytest.fixture
def replier(suite, topic, tmp_path):
    """Start `reply` on the topic; it answers once its members own the queues."""
    started: list[Replier] = []

    def replier(*args):
        errors = tmp_path / f"errors{len(started)}"
        with errors.open("wb") as file:
            child = Replier(
                [str(PROGRAM), "reply", topic, "--json", "-n", suite.namesrv, *map(str, args)],
                stdout=subprocess.PIPE,
                stderr=file,
            )
        child.errors = errors
        started.append(child)
        wait_until(lambda: b"waiting for requests" in errors.read_bytes(), DEADLINE_S, "a replier")
        return child

    yield replier
    for child in started:
        with child:
            child.kill()


def ended(child, ask, topic):
    """Return the facts that `reply` prints at its end, and its exit status.

    A requester may have its reply before `reply` knows that it was sent. Messages are handled one
    after another, so once a later one is named, every reply is counted.
    """
    assert ask("produce", topic, "no request").status == 0
    wait_until(lambda: b"is no request" in child.errors.read_bytes(), DEADLINE_S, "its turn")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=DEADLINE_S)
    return json.loads(out), child.returncode


def test_an_echo_answers_with_the_request(ask, topic, replier):
    child = replier("--echo")
    first = ask("request", topic, "one", "--timeout", DEADLINE_S, "-k", "k1", "-p", "a=b")
    assert (first.status, first.out) == (0, "one\n")
    many = ask(
        *("request", topic, "n", "--count", 3),
        *("--timeout", DEADLINE_S, "--json"),
    )
    assert [(it["body"], it["took_ms"] > 0) for it in many.lines] == [
        ("n", True), ("n", True), ("n", True),
    ]  # fmt: skip
    assert "3 of 3 requests answered" in many.err
    facts, status = ended(child, ask, topic)
    assert (facts["requests"], facts["replied"], facts["failed"], status) == (4, 4, 0, 130)


def test_a_command_gets_the_request_and_its_output_is_the_reply(ask, topic, replier):
    command = 'printf "%s %s %s:" "$REQUEST_KEYS" "$REQUEST_TAG" "$REQUEST_PROPERTY_colour"; cat'
    replier("--command", command)
    args = ("-k", "k1", "--tag", "new", "-p", "colour=blue", "-p", "no-name=x")
    found = ask("request", topic, "body", "--timeout", DEADLINE_S, *args)
    assert found.out == "k1 new blue:body\n"


def test_a_command_that_fails_gives_no_reply_and_the_next_request_is_answered(ask, topic, replier):
    child = replier("--command", 'read -r line; [ "$line" = good ] && echo fine')
    assert ask("request", topic, "good", "--timeout", DEADLINE_S).out == "fine\n\n"
    bad = ask("request", topic, "bad", "--timeout", 2)
    bad.assert_refused(1, f"no reply to the request to the topic {topic} in 2000 ms")
    assert ask("request", topic, "good", "--timeout", DEADLINE_S).status == 0
    assert b"gets no reply: the command ended with the exit status 1" in child.errors.read_bytes()
    facts, status = ended(child, ask, topic)
    assert (facts["replied"], facts["failed"], status) == (2, 1, 130)


def test_a_command_that_hangs_is_ended_when_its_requester_gives_up(ask, topic, replier, tmp_path):
    mark = tmp_path / "pid"
    child = replier("--command", f'read -r it; [ "$it" = x ] && echo $$ > {mark} && sleep 900; cat')
    assert ask("request", topic, "x\nlate", "--timeout", DEADLINE_S / 60).status == 1
    wait_until(lambda: b"was not done after" in child.errors.read_bytes(), DEADLINE_S, "its end")
    pid = int(mark.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), DEADLINE_S, "no process")
    assert ask("request", topic, "y\nlate", "--timeout", DEADLINE_S).out == "late\n"


def test_a_number_of_requests_ends_it_and_other_messages_are_skipped(ask, topic, replier):
    child = replier("text", "--count", 2)
    assert ask("produce", topic, "no request").status == 0
    found = ask("request", topic, "?", "--count", 2, "--timeout", DEADLINE_S)
    assert found.out == "text\ntext\n"
    out, _ = child.communicate(timeout=DEADLINE_S)
    facts = json.loads(out)
    assert (child.returncode, facts["replied"], facts["not_requests"]) == (0, 2, 1)
    assert b"is no request" in child.errors.read_bytes()


def test_expired_requests_are_skipped(ask, topic, replier, monkeypatch):
    monkeypatch.setattr("cometmq.cli.messaging.reply.CLOCKS_MS", -60_000)
    unanswered = ask("request", topic, "old", "--timeout", 0.5)
    assert unanswered.status == 1
    late = ask("reply", topic, "late", "--count", 1, "--json").json
    assert (late["expired"], late["replied"]) == (1, 0)


def test_a_body_comes_from_standard_input(pipe, topic, replier):
    replier("--echo")
    found = pipe("request", topic, "--timeout", DEADLINE_S, stdin=b"of\nlines\n")
    assert (found.status, found.out) == (0, "of\nlines\n\n")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("reply", "T"), "give one answer: a body, --echo or --command"),
        (("reply", "T", "x", "--echo"), "give one answer: a body, --echo or --command"),
        (("request", "T", ""), "the argument after"),
        (("request", "T", "x", "--format", "%"), ""),
        (("request", "T", "x", "-p", "TTL=1"), "--property TTL=1: RocketMQ sets this property"),
    ],
)
def test_wrong_usage_is_named_before_anything_is_sent(ask, args, line):
    refused = ask(*args)
    assert (refused.status, refused.out) == (2, "")
    assert line in refused.err


def test_a_topic_that_does_not_exist_is_named(ask):
    ask("reply", "MissingTopic", "--echo").assert_refused(1, "")
