# SPDX-License-Identifier: Apache-2.0
"""A broker with the native lane has the same files, tables, figures and answers as one without."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.native import IS_BUILT
from cometmq.broker.storing import store_driver
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport import dispatch
from cometmq.remoting.transport.flow import room, turns
from cometmq.remoting.transport.peer import intake
from cometmq.testing.broker.scripted import frames_of
from cometmq.testing.broker.scripts import Step, frame

from .odd_texts import MARK, TEXTS
from .send_runs import CASES, compare, run
from .send_script import TOPIC, Script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")


@pytest.mark.parametrize("name", CASES)
@seeds(1, long=3)
def test_plain_sends_give_the_same_broker_through_the_lane(name, seed):
    script = Script(seed, oddity=0)
    steps = script.write(turns=30)
    count = compare(CASES[name], steps)
    if name != "bounded":
        assert count > 0.95 * script.plain_count


@pytest.mark.parametrize("name", CASES)
@examples(3, long=10)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_sends_and_disturbances_give_the_same_broker(name, seed, oddity):
    script = Script(seed, oddity=oddity)
    compare(CASES[name], script.write(turns=25))


@examples(30, long=300)
@given(texts=st.lists(TEXTS, min_size=1, max_size=8), is_binary=st.booleans())
def test_texts_of_any_bytes_give_the_same_broker(texts, is_binary):
    script, steps = Script(1, oddity=0), []
    script.takes_delays = False
    for number, text in enumerate([MARK, *texts, MARK]):
        field, value = ("a", "{}") if number % 3 == 1 else ("i", "TAGS\x01{}\x02b\x01c")
        ext = script.header(is_batch=False)
        ext |= {"b": TOPIC, "f": "0", field: value.format(MARK.decode())}
        data = frame(310, ext, b"x", opaque=number, is_binary=is_binary)
        steps += [Step("receive", 0, data.replace(MARK, text)), Step("settle")]
    assert compare(CASES["asynchronous"], steps) > 0


def test_a_slow_machine_changes_nothing_that_is_compared(monkeypatch):
    steps = Script(166067721, oddity=1.0).write(turns=25)
    quick = run(CASES["IPv6"], steps, lane=False)
    seconds = itertools.count()
    for module in (dispatch, turns):
        monkeypatch.setattr(module, "monotonic", lambda: float(next(seconds)))
    for module in (intake, room, turns):
        monkeypatch.setattr(module, "thread_time", lambda: float(next(seconds)))
    assert run(CASES["IPv6"], steps, lane=False) == quick


def test_a_commit_in_the_middle_of_a_chunk_loses_no_later_send(monkeypatch):
    monkeypatch.setattr(store_driver, "STAGED_BYTES_MAX", 300)
    script = Script(5, oddity=0)
    steps = []
    for _ in range(3):
        parts = [script.send() + script.send() + script.send() for _ in range(3)]
        steps += [Step("receive", 0, frame(9999, {}).join(parts)), Step("settle")]
    case = CASES["asynchronous"]
    without, _ = run(case, steps, lane=False)
    with_lane, count = run(case, steps, lane=True)
    assert count > 0
    assert with_lane["log"] == without["log"]
    answers = [sorted(frames_of(state["answers"][0])) for state in (with_lane, without)]
    assert answers[0] == answers[1]  # their order depends on where the commits end


@pytest.mark.parametrize("method", ["stage", "sends", "encode", "send"])
def test_a_panic_before_the_answers_changes_nothing_but_the_path(method):
    steps = Script(1, oddity=0).write(turns=10)
    without, _ = run(CASES["asynchronous"], steps, lane=False)
    is_direct = method != "encode"  # otherwise, `send` encodes the answers
    case = CASES["asynchronous"]
    panicked, count = run(case, steps, lane=True, is_direct=is_direct, panics_in=method)
    assert panicked == without
    assert (count > 0) is (method != "stage")


def test_sends_that_a_panic_kept_from_the_log_are_refused_and_later_ones_stored():
    steps = Script(1, oddity=0).write(turns=10)
    panicked, count = run(CASES["asynchronous"], steps, lane=True, panics_in="place")
    codes = [
        decode_header(serialization, head).code
        for sent in panicked["answers"]
        for serialization, head, _ in frames_of(sent)
    ]
    assert codes.count(ResponseCode.SYSTEM_ERROR) == count > 0
    assert codes.count(ResponseCode.SUCCESS) > count
    without, _ = run(CASES["asynchronous"], steps, lane=False)
    put_count = panicked["counts"][0]
    assert without["counts"][0] - put_count >= count  # a batch is one send of several messages
