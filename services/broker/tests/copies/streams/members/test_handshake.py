# SPDX-License-Identifier: Apache-2.0
"""Where a follower may continue, and the error messages for followers that may not."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.broker.copies.streams.frames import Kind, encode_body
from cometmq.broker.copies.streams.handshake import (
    Digest,
    Hello,
    Identity,
    LogExtent,
    Offer,
    Refused,
    Welcome,
    check_hello,
    check_welcome,
    decode_handshake,
    meeting_point,
)
from cometmq.broker.copies.unfit import ACTIONS, Unfit, UnfitLog
from cometmq.ha.epochs import HISTORY_COUNT_MAX, CommonPoint, Entry
from cometmq.ha.record import Copy
from cometmq.remoting.errors import RemoteProtocolError

MASTER = Identity("c", "broker-a", Copy(0, "m"))
SLAVE = Identity("c", "broker-a", Copy(1, "x"))
LOG = LogExtent(0, 500, 4096, (Entry(1, 0), Entry(3, 300)))
HELLO = Hello(SLAVE, 3, 3, 0, replace(LOG, end=400))
LEADING = Offer(MASTER, 3, LOG)
WELCOME = Welcome(MASTER, 3, LOG, 400, Digest(0), 350)


def encoded(value: object) -> memoryview:
    return memoryview(msgspec.json.encode(value))


def test_the_handshake_is_decoded() -> None:
    assert decode_handshake(encoded(HELLO), Hello) == HELLO
    assert decode_handshake(encoded(WELCOME), Welcome) == WELCOME
    refused = Refused("a reason of a later version", "text", 7)
    assert decode_handshake(encoded(refused), Refused) == refused


@pytest.mark.parametrize(
    "log",
    [
        replace(LOG, first=501),
        replace(LOG, first=-1),
        replace(LOG, history=(Entry(1, 0), Entry(1, 300))),
        replace(LOG, history=(Entry(1, 300), Entry(2, 300))),
        replace(LOG, history=(Entry(0, 0),)),
        replace(LOG, history=(Entry(1, 501),)),
    ],
)
def test_logs_that_contradict_themselves_are_refused(log: LogExtent) -> None:
    with pytest.raises(RemoteProtocolError, match="Hello contradicts itself: "):
        decode_handshake(encoded(replace(HELLO, log=log)), Hello)


def test_the_longest_history_that_a_master_keeps_fits_into_a_frame() -> None:
    entries = tuple(Entry((1 << 63) + n, (1 << 62) + n) for n in range(HISTORY_COUNT_MAX))
    log = replace(LOG, end=(1 << 63) - 1, history=entries)
    names = Identity("c" * 127, "g" * 127, Copy(1 << 31, "x" * 64))
    hello = msgspec.json.encode(replace(HELLO, identity=names, log=log))
    welcome = msgspec.json.encode(replace(WELCOME, identity=names, log=log))
    assert encode_body(Kind.HELLO, hello)
    assert encode_body(Kind.WELCOME, welcome)
    assert decode_handshake(memoryview(hello), Hello).log == log


@example(b'{"a":' + b"[" * 10_000)
@given(st.binary(max_size=100))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="Hello cannot be read"):
        decode_handshake(memoryview(data), Hello)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (replace(HELLO, identity=replace(SLAVE, cluster="d")), Unfit.FOREIGN),
        (replace(HELLO, identity=replace(SLAVE, group="broker-b")), Unfit.FOREIGN),
        (replace(HELLO, identity=replace(SLAVE, copy=Copy(0, "y"))), Unfit.DUPLICATE),
        (replace(HELLO, promised=4), Unfit.STALE_EPOCH),
        (replace(HELLO, epoch=2), Unfit.NOT_MASTER),
        (replace(HELLO, master=2), Unfit.NOT_MASTER),
        (replace(HELLO, log=replace(LOG, file_size=8192)), Unfit.FILE_SIZE),
    ],
)
def test_a_master_says_why_it_does_not_serve_a_follower(hello: Hello, reason: Unfit) -> None:
    check_hello(HELLO, LEADING)
    with pytest.raises(UnfitLog) as caught:
        check_hello(hello, LEADING)
    assert caught.value.reason is reason
    assert caught.value.action == ACTIONS[reason]


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (replace(WELCOME, identity=replace(MASTER, group="broker-b")), Unfit.FOREIGN),
        (replace(WELCOME, epoch=2), Unfit.STALE_EPOCH),
        (replace(WELCOME, epoch=4), Unfit.STALE_EPOCH),
        (replace(WELCOME, identity=replace(MASTER, copy=Copy(2, "y"))), Unfit.NOT_MASTER),
        (replace(WELCOME, log=replace(LOG, file_size=8192)), Unfit.FILE_SIZE),
        (replace(WELCOME, start=300), Unfit.DIVERGED),
        (replace(WELCOME, log=replace(LOG, first=450)), Unfit.EXPIRED),
    ],
)
def test_a_follower_says_why_it_does_not_follow(welcome: Welcome, reason: Unfit) -> None:
    assert check_welcome(WELCOME, HELLO) == CommonPoint(400, LOG.history)
    with pytest.raises(UnfitLog) as caught:
        check_welcome(welcome, HELLO)
    assert caught.value.reason is reason


def test_an_empty_log_begins_where_the_masters_begins() -> None:
    empty = LogExtent(0, 0, 4096, ())
    master = LogExtent(4096, 9000, 4096, (Entry(2, 100),))
    assert meeting_point(empty, master) == CommonPoint(4096, ())


def test_a_divergent_tail_ends_at_the_newest_common_epoch() -> None:
    follower = LogExtent(0, 420, 4096, (Entry(1, 0), Entry(2, 310)))
    assert meeting_point(follower, LOG) == CommonPoint(300, (Entry(1, 0),))


def test_logs_without_a_common_part_need_an_operator() -> None:
    follower = LogExtent(4096, 9000, 4096, (Entry(2, 4096),))
    with pytest.raises(UnfitLog) as caught:
        meeting_point(follower, LogExtent(0, 9000, 4096, (Entry(1, 0), Entry(3, 4000))))
    assert caught.value.reason is Unfit.DIVERGED
    with pytest.raises(UnfitLog) as caught:
        meeting_point(replace(follower, first=0), LogExtent(4097, 9000, 4096, (Entry(3, 4097),)))
    assert caught.value.reason is Unfit.EXPIRED
