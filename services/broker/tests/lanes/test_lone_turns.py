# SPDX-License-Identifier: Apache-2.0
"""Sends that are alone in their turn of the loop are stored and answered at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.lanes.lane import BrokerLane
from cometmq.broker.native import IS_BUILT
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.transport.direct import DirectIO
from cometmq.store.writing.append import Appender
from cometmq.testing.broker.scripted import frames_of

from .send_runs import CASES, play_alone, play_together, run
from .send_script import Script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

SENDS = 200


def without_shortcut(patch: pytest.MonkeyPatch) -> None:
    """Store each run at the end of the turn, and send answers as rows."""
    put = BrokerLane.put

    def put_later(lane: BrokerLane, *run: Any, at_once: bool = False) -> Any:
        return put(lane, *run)

    patch.setattr(BrokerLane, "put", put_later)
    patch.setattr(DirectIO, "reply", lambda *_: None)


def stored_runs(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each run that is stored at once."""
    counts: list[int] = []
    take_run = Appender.take_run

    def counted(appender: Appender, source: Any, count: int) -> Any:
        counts.append(count)
        return take_run(appender, source, count)

    patch.setattr(Appender, "take_run", counted)
    return counts


@pytest.mark.parametrize("name", [name for name in CASES if name != "bounded"])
@seeds(1, long=3)
def test_a_chunk_that_is_alone_gives_the_same_broker(name, seed, monkeypatch):
    steps = Script(seed, oddity=0).write(turns=25)
    case = CASES[name]
    without, _ = run(case, steps, lane=False, player=play_alone)
    counts = stored_runs(monkeypatch)
    alone, _ = run(case, steps, lane=True, is_direct=True, has_sockets=True, player=play_alone)
    assert len(counts) > 5
    answers = [list(map(frames_of, state.pop("answers"))) for state in (without, alone)]
    assert answers[0] == answers[1]
    del alone["reading"], without["reading"]  # `DirectIO` reads instead of the transports
    assert alone == without


@pytest.mark.parametrize("name", CASES)
@examples(3, long=10)
@given(
    seed=st.integers(0, 2**32),
    oddity=st.sampled_from([0.1, 0.3, 1.0]),
    player=st.sampled_from([play_alone, play_together]),
)
def test_disturbances_have_the_same_effects_as_at_the_end_of_a_turn(name, seed, oddity, player):
    steps, case = Script(seed, oddity=oddity).write(turns=12), CASES[name]

    def play() -> dict[str, Any]:
        state, _ = run(case, steps, lane=True, is_direct=True, has_sockets=True, player=player)
        return state

    with pytest.MonkeyPatch.context() as patch:
        without_shortcut(patch)
        later = play()
    at_once = play()
    assert at_once == later
