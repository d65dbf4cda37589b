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
    """Poll the syncer: `select` would refuse a descriptor above 1,023, and other tests may hold
    many.
    """
    poll = select.poll()
    poll.register(syncer.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def ends(syncer, last):
    """Return the syncs that end until the one with the number `last` does."""
    found: list[tuple[int, float, tuple[int, int] | None, float]] = []
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
    assert [number for number, *_ in found] == sorted({*range(1, 201)} - {*replaced})
    assert all(seconds >= 0 and failure is None for _, seconds, failure, _ in found)
    deadline_s = monotonic() + DEADLINE_S
    while is_readable(syncer, 0):  # the thread may wake the loop after the loop has looked
        assert syncer.take() == []
        assert monotonic() < deadline_s


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
                ((_, _, found, late_s),) = ends(syncer, number)
                assert late_s >= 0
                assert found == failure
    finally:
        for descriptor in (reader, writer, folder):
            os.close(descriptor)


class Peer:
    """A connection that is read and written directly."""

    def __init__(self, count: int = 1000) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.fd = self.direct_fd = self.theirs.fileno()
        self.may_lend, self.is_dirty, self.loan, self.in_flight = True, False, None, count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ours.close()
        self.theirs.close()

    def received(self):
        """Return what has arrived, without waiting."""
        try:
            return self.ours.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""


def lend(*rows):
    return accel.LentAnswers([(peer, data, 1) for peer, data in rows])


def test_answers_are_written_after_their_sync_and_are_counted_once():
    syncer = accel.LogSyncer()
    with TemporaryFile() as file, Peer() as one, Peer() as other:
        syncer.start(1, [file.fileno()], None)
        lent = lend((one, b"first"), (other, b"second"))
        assert (one.direct_fd, other.direct_fd) == (-2, -2)
        syncer.lend(1, lent, True)
        ends(syncer, 1)
        written = one.received(), other.received()
        count, sent_bytes, rest = lent.settle()
        assert (one.direct_fd, other.direct_fd) == (one.fd, other.fd)
        assert one.loan is None
        if written == (b"first", b"second"):  # otherwise the sync ended before the answers came
            assert (count, sent_bytes, rest) == (2, 11, [])
            assert (one.in_flight, other.in_flight) == (999, 999)
        else:
            assert written == (b"", b"")
            assert rest == [(one, b"first", 1, False), (other, b"second", 1, False)]
        assert lent.settle() == (0, 0, [])


def test_nothing_is_written_after_a_failed_sync():
    syncer = accel.LogSyncer()
    reader, writer = os.pipe()
    with TemporaryFile() as file, Peer() as peer:
        syncer.start(1, [writer], None)
        failed = lend((peer, b"failed"))
        syncer.lend(1, failed, True)
        ends(syncer, 1)
        assert failed.settle() == (0, 0, [(peer, b"failed", 1, False)])
        syncer.start(2, [file.fileno()], None)  # proves nothing
        late = lend((peer, b"late"))
        syncer.lend(2, late, True)
        ends(syncer, 2)
        assert late.settle() == (0, 0, [(peer, b"late", 1, False)])
        assert peer.received() == b""
    os.close(reader)
    os.close(writer)


def test_an_answer_is_written_by_the_thread_or_left_to_the_loop_never_both():
    syncer = accel.LogSyncer()
    with TemporaryFile() as file, Peer() as peer:
        outcomes = set()
        for number in range(2, 402, 2):
            syncer.start(number, [file.fileno()], None)
            lent = lend((peer, b"x"))
            syncer.lend(number, lent, True)
            if number % 4:
                syncer.start(number + 1, [file.fileno()], None)  # may replace it
            if number % 3 == 0:
                assert peer.loan.withdraw() == b""
            elif number % 3 == 1:
                ends(syncer, number + 1 if number % 4 else number)
            count, sent_bytes, rest = lent.settle()
            assert len(peer.received()) == sent_bytes
            # The transport may write only after `withdraw`, and the count is its own then.
            assert count + len(rest) == 1
            assert sent_bytes == 0 if rest and not rest[0][3] else sent_bytes == 1
            outcomes.add(sent_bytes)
            if number % 3 != 1:
                ends(syncer, number + 1 if number % 4 else number)
            assert peer.received() == b""
    assert 0 in outcomes


def test_rows_of_a_connection_are_written_in_order_or_left():
    with Peer() as peer, Peer() as other:
        first, second = lend((peer, b"1")), lend((peer, b"2"), (other, b"o"))
        assert first.write()
        assert second.write()
        assert peer.received() == b"12"
        assert [one.settle()[0] for one in (first, second)] == [1, 2]
        assert peer.direct_fd == peer.fd
        first, second, third = lend((peer, b"1")), lend((peer, b"2")), lend((peer, b"3"))
        assert peer.loan.withdraw() == b""  # of all three
        peer.direct_fd = peer.fd  # as the connection does
        fourth = lend((peer, b"4"))  # may not overtake the others
        assert peer.direct_fd == peer.fd
        for number, one in enumerate((first, second, third, fourth), 1):
            assert not one.write()
            assert one.settle() == (0, 0, [(peer, b"%d" % number, 1, False)])
        assert peer.received() == b""
        fifth = lend((peer, b"5"))
        assert fifth.write()
        assert peer.received() == b"5"
        assert fifth.settle()[0] == 1


def test_a_row_that_the_kernel_takes_in_part_stops_the_next_ones():
    with Peer() as peer:
        large = bytes(range(256)) * (1 << 14)
        first, second = lend((peer, large)), lend((peer, b"2"))
        assert not first.write()
        assert not second.write()
        got = peer.received()
        assert 0 < len(got) < len(large)
        count, sent_bytes, ((_, rest, answers, is_written),) = first.settle()
        assert (count, answers, is_written) == (0, 1, True)
        assert large[sent_bytes:] == rest
        assert second.settle() == (0, 0, [(peer, b"2", 1, False)])
        first = lend((peer, large))
        assert not first.write()
        rest = peer.loan.withdraw()  # other output comes: the rest precedes it
        assert 0 < len(rest) < len(large)
        assert peer.loan.withdraw() == b""
        peer.direct_fd = -1  # until the transport has sent the rest
        ((_, again, _, is_written),) = first.settle()[2]
        assert (again, is_written) == (b"", True)


def test_rows_of_connections_that_may_not_be_written_are_left():
    with Peer() as unsent, Peer() as dirty, Peer() as secured:
        unsent.direct_fd, dirty.is_dirty, secured.may_lend = -1, True, False
        lent = lend((unsent, b"1"), (dirty, b"2"), (secured, b"3"))
        assert not lent.write()
        assert (unsent.direct_fd, dirty.direct_fd, secured.direct_fd) == (-1, dirty.fd, secured.fd)
        rows = [(unsent, b"1", 1, False), (dirty, b"2", 1, False), (secured, b"3", 1, False)]
        assert lent.settle() == (0, 0, rows)
        assert [peer.received() for peer in (unsent, dirty, secured)] == [b""] * 3


def test_an_end_whose_answers_are_all_written_is_reported_late_and_with_the_next():
    syncer = accel.LogSyncer()
    with TemporaryFile() as file, Peer() as peer:
        number = 0
        for _ in range(100):
            lent = []
            for _ in range(3):
                number += 1
                syncer.start(number, [file.fileno()], None)
                lent.append(lend((peer, b"answer")))
                syncer.lend(number, lent[-1], True)
            ends(syncer, number)
            assert b"".join(peer.received() for _ in range(3)) in {b"answer" * n for n in range(4)}
            assert sum(one.settle()[0] for one in lent) <= 3


def test_the_thread_ends_with_its_object():
    def threads() -> set[str]:
        """Return the threads that were not there before: those of earlier objects may end
        meanwhile.
        """
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
