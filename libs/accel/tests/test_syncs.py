# SPDX-License-Identifier: Apache-2.0
"""The thread that syncs the log: order, replacement, failures, and its end."""

import errno
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep

import pytest

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

DEADLINE_S = 30.0


def is_readable(syncer, timeout_s):
    """Unlike select, poll takes any descriptor: other tests of the process may hold a thousand."""
    poll = select.poll()
    poll.register(syncer.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def ends(syncer, last):
    """Return the syncs that end until the one with the number `last` does."""
    found: list[tuple[int, float, tuple[int, int] | None]] = []
    while not found or found[-1][0] != last:
        assert is_readable(syncer, DEADLINE_S), f"sync {last} did not end: {found}"
        found += syncer.take()
    return found


def test_syncs_end_in_order_and_only_a_sync_that_has_not_begun_is_replaced():
    syncer = accel.LogSyncer()
    assert syncer.take() == []
    with TemporaryFile() as file:
        replaced = []
        for number in range(1, 201):
            file.write(b"x" * 4_096)
            file.flush()
            if syncer.start(number, [file.fileno()], None):
                replaced.append(number - 1)
        found = ends(syncer, 200)
    assert [number for number, _, _ in found] == sorted({*range(1, 201)} - {*replaced})
    assert all(seconds >= 0 and failure is None for _, seconds, failure in found)
    assert not is_readable(syncer, 0)


def test_the_first_file_that_fails_is_reported(tmp_path: Path):
    syncer = accel.LogSyncer()
    reader, writer = os.pipe()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with TemporaryFile() as file:
            good = file.fileno()
            for number, files, last, failure in (
                (1, [good, writer], folder, (1, errno.EINVAL)),
                (2, [good], writer, (1, errno.EINVAL)),
                (3, [-1], None, (0, errno.EBADF)),
                (4, [good], folder, None),
            ):
                syncer.start(number, files, last)
                ((_, _, found),) = ends(syncer, number)
                assert found == failure
    finally:
        for descriptor in (reader, writer, folder):
            os.close(descriptor)


def received(ours):
    """Return what has arrived, without waiting."""
    try:
        return ours.recv(100, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def test_an_answer_is_written_after_its_sync_and_never_after_it_was_taken_back():
    syncer = accel.LogSyncer()
    ours, theirs = socket.socketpair()
    with TemporaryFile() as file, ours, theirs:
        theirs.setblocking(False)
        syncer.start(1, [file.fileno()], None)
        syncer.answer(1, theirs.fileno(), b"first")
        ends(syncer, 1)
        assert ours.recv(100) == b"first"
        assert syncer.withdraw() == 5
        assert syncer.withdraw() == 0
        syncer.answer(1, theirs.fileno(), b"late")  # the sync has ended
        assert received(ours) == b"late"
        assert syncer.withdraw() == 4
        reader, writer = os.pipe()
        syncer.start(2, [writer], None)
        syncer.answer(2, theirs.fileno(), b"failed")
        ends(syncer, 2)
        syncer.start(3, [file.fileno()], None)  # proves nothing
        ends(syncer, 3)
        assert received(ours) == b""
        assert syncer.withdraw() == 0
        syncer.answer(3, theirs.fileno(), b"late")  # the same
        assert received(ours) == b""
        os.close(reader)
        os.close(writer)


def test_an_answer_is_written_as_often_as_taking_it_back_says():
    syncer = accel.LogSyncer()
    ours, theirs = socket.socketpair()
    with TemporaryFile() as file, ours, theirs:
        theirs.setblocking(False)
        for number in range(2, 202, 2):
            syncer.start(number, [file.fileno()], None)
            syncer.answer(number, theirs.fileno(), b"x")
            if number % 4:
                syncer.start(number + 1, [file.fileno()], None)  # may replace it
            sent = syncer.withdraw()
            ends(syncer, number + 1 if number % 4 else number)
            assert len(received(ours)) == sent


def test_an_answer_survives_the_replacement_of_its_sync():
    syncer = accel.LogSyncer()
    ours, theirs = socket.socketpair()
    with TemporaryFile() as file, ours, theirs:
        theirs.setblocking(False)
        number = 0
        for _ in range(100):
            first = number = number + 1
            syncer.start(number, [file.fileno()], None)
            syncer.answer(number, theirs.fileno(), b"answer")
            for _ in range(3):
                number += 1
                syncer.start(number, [file.fileno()], None)
            assert ours.recv(100) == b"answer"
            assert ends(syncer, number)[0][0] >= first
            assert syncer.withdraw() == 6


def test_the_thread_ends_with_its_object():
    def threads() -> set[str]:
        """Return those of this object: threads of earlier ones may end meanwhile."""
        found = set()
        for task in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                if (task / "comm").read_text().strip() == "cometmq-flush":
                    found.add(task.name)
        return found - before

    before: set[str] = set()
    before = threads()
    syncer = accel.LogSyncer()
    deadline_s = monotonic() + DEADLINE_S
    while len(threads()) != 1 and monotonic() < deadline_s:
        sleep(0.001)
    assert len(threads()) == 1
    del syncer
    while threads() and monotonic() < deadline_s:
        sleep(0.001)
    assert threads() == set()
