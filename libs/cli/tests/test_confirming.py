# SPDX-License-Identifier: Apache-2.0
"""Destructive commands ask on a terminal; test_admin runs them without one."""

import os
import pty
import subprocess
from contextlib import suppress

import pytest

from cometmq.peers.comet import PROGRAM


@pytest.mark.parametrize(("answer", "is_deleted"), [(b"n\n", False), (b"y\n", True)])
def test_a_terminal_is_asked(ask, suite, topic, answer, is_deleted):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", 0) as keyboard, os.fdopen(theirs, "rb", 0) as terminal:
        keyboard.write(answer)
        command = [str(PROGRAM), "topic", "delete", topic, "-n", suite.namesrv]
        done = subprocess.run(
            command, stdin=terminal, capture_output=True, timeout=180, check=False
        )
    assert f"Delete the topic {topic} with all its messages?".encode() in done.stdout
    assert done.returncode == (0 if is_deleted else 1)
    assert (topic in ask("topic", "list").out) != is_deleted


def test_an_answer_from_a_pipe_does_not_count(ask, pipe, topic):
    refused = pipe("topic", "delete", topic, stdin=b"y\n")
    question = f"Delete the topic {topic} with all its messages?"
    refused.assert_refused(2, question)
    assert "Standard input is not a terminal" in refused.err
    assert topic in ask("topic", "list").out


def typed(key, prompt, *command):
    """Type a key once the command asks; return the exit status and what the terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [str(PROGRAM), *command])
    with os.fdopen(terminal, "r+b", 0) as keyboard:
        shown = b""
        while prompt not in shown:
            shown += keyboard.read(1000)
        keyboard.write(key)
        with suppress(OSError):  # EIO: the command has ended and closed its terminal
            while more := keyboard.read(1000):
                shown += more
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), shown


def test_ctrl_c_at_a_question_is_an_interrupt(ask, suite, topic):
    command = ("topic", "delete", topic, "-n", suite.namesrv)
    status, shown = typed(b"\x03", b"[y/N]: ", *command)
    assert status == 130
    assert b"cometmq: interrupted: nothing was changed" in shown
    assert b"Aborted" not in shown
    assert topic in ask("topic", "list").out


def test_ctrl_d_instead_of_a_secret_key_is_an_empty_key(own_settings):
    command = ("context", "add", "prod", "--access-key", "ops")
    status, shown = typed(b"\x04", b"Secret key of ops: ", *command)
    assert status == 2
    assert b"cometmq: the secret key is empty" in shown
    assert b"Traceback" not in shown
