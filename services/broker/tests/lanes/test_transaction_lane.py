# SPDX-License-Identifier: Apache-2.0
"""A broker that handles transactions natively has the same files, figures and answers as one that
does not.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.native import IS_BUILT
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC, PARKED_TOPIC
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import Step, frame

from .send_runs import CASES, Case, play, run
from .send_script import PEERS, Script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

GROUPS = ("P", "producers of €")


class TransactionScript(Script):
    """A script of sends, many of them half messages, and of requests that end them."""

    def __init__(self, seed: int, *, oddity: float) -> None:
        super().__init__(seed, oddity=oddity)
        self.is_half = False
        self.end_count = 0

    def write(self, turns: int) -> list[Step]:
        # The handlers create the topics of transactions, and then the lane learns.
        for _ in range(3):
            self.is_half = True
            data = self.framed(310, self.header(is_batch=False), b"first")
            self.steps += [Step("receive", 0, data), Step("settle"), self.ends(0, b"", 1)]
            self.steps.append(Step("settle"))
        for _ in range(turns):
            for peer in range(PEERS):
                data = b"".join(self.request() for _ in range(self.rng.randrange(4)))
                self.steps.append(self.ends(peer, data, self.rng.randrange(5)))
            if self.odd(0.3):
                self.disturb()
            self.steps.append(Step("settle"))
        self.steps += [Step("heal"), Step("settle")]
        return self.steps

    def ends(self, peer: int, data: bytes, count: int) -> Step:
        """Return a step that delivers requests and the ends of some half messages."""
        self.end_count += count
        amount = self.rng.getrandbits(40) << 8 | count
        return Step("ends" if not self.oddity else "odd ends", peer, data, amount)

    def send(self) -> bytes:
        self.is_half = self.chance(0.7)
        return super().send()

    def batch(self) -> bytes:
        self.is_half = self.odd(0.3)
        return super().batch()

    def properties(self, *, is_item: bool = False) -> str:
        if not self.is_half:
            return super().properties(is_item=is_item)
        self.takes_delays = self.odd(0.2)
        text = super().properties(is_item=is_item)
        group = "P"
        mark = "TRAN_MSG\x01true"
        if self.odd(0.2):
            group = self.rng.choice([*GROUPS, "", "a b"])
            mark = self.rng.choice([mark, "TRAN_MSG\x01TRUE", "TRAN_MSG\x01false"])
        extra = f"{mark}\x02PGROUP\x01{group}"
        if self.odd(0.05):
            extra += self.rng.choice(
                ["\x02REAL_TOPIC\x01X", "\x02REAL_QID\x017", "\x02PGROUP\x01Q"]
            )
        return f"{extra}\x02{text}" if self.chance(0.5) else f"{text.rstrip(chr(2))}\x02{extra}"

    def header(self, *, is_batch: bool) -> dict[str, str]:
        ext = super().header(is_batch=is_batch)
        if self.is_half and not is_batch:
            ext["f"] = self.rng.choice(["4", "4", "5", "0"])
            if self.odd(0.1):
                ext["f"] = self.rng.choice(["8", "12", "20", "36"])
        return ext


def end_frames(broker: ScriptedBroker, step: Step) -> Iterator[bytes]:
    """Yield requests that end half messages of the broker; two equal brokers get the same ones."""
    rng = random.Random(step.amount)
    is_odd = step.action == "odd ends"
    first, entries = broker.queue_entries().get((HALF_TOPIC, 0), (0, []))
    for number in range(step.amount & 0xFF):
        if not entries:
            return
        # Mostly recent half messages; sometimes one that has already ended.
        index = len(entries) - 1 - min(rng.randrange(1, 30) // 2, len(entries) - 1)
        physical_offset, queue_offset = entries[index][0], first + index
        group, decision, flag = "P", rng.choice(["8", "8", "12"]), 2
        if is_odd and rng.random() < 0.3:
            group = rng.choice([*GROUPS, "Q", ""])
            decision = rng.choice(["8", "12", "0", "4", "x"])
            physical_offset += rng.choice([0, 0, 1, -7])
            queue_offset += rng.choice([0, 0, 1])
            flag = rng.choice([2, 2, 0])
        ext = {
            "producerGroup": group, "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(physical_offset), "commitOrRollback": decision,
            "fromTransactionCheck": rng.choice(["true", "false"]), "msgId": "0A0B",
            "transactionId": "0A0B",
        }  # fmt: skip
        if is_odd and rng.random() < 0.15:
            ext.pop(rng.choice(list(ext)))
        if is_odd and rng.random() < 0.1:
            ext[rng.choice(["topic", "bname", *ext])] = rng.choice(["Orders", "-1", "é", ""])
        body = b"body" if is_odd and rng.random() < 0.05 else b""
        yield frame(
            37, ext, body, opaque=1_000_000 + number, flag=flag, is_binary=rng.random() < 0.5
        )


async def play_transactions(broker: ScriptedBroker, steps: list[Step]) -> None:
    """Play a script; the ends are chosen when their step is played."""
    for step in steps:
        played = [step]
        if step.action in {"ends", "odd ends"}:
            data = step.data + b"".join(end_frames(broker, step))
            if step.amount & 1:
                data = b"".join(end_frames(broker, step)) + step.data
            cut = step.amount % (len(data) + 1)
            chunks = [chunk for chunk in (data[:cut], data[cut:]) if chunk]
            played = [Step("receive", step.peer, chunk) for chunk in chunks]
        await play(broker, played)


def transactions_of(broker: ScriptedBroker) -> dict[str, Any]:
    known = broker.broker.deferred.transactions
    count = len(broker.queue_entries().get((HALF_TOPIC, 0), (0, []))[1])
    return {
        "prepared": known.prepared_count,
        **{one.value: count for one, count in known.outcomes.items()},
        "repeated": known.repeated_count,
        "ending": len(known._in_flight),
        "ended": [offset for offset in range(count) if offset in known.ended],
    }


def run_transactions(
    case: Case, steps: list[Step], *, lane: bool, panics_in: str = ""
) -> tuple[dict[str, Any], int]:
    return run(
        case, steps, lane=lane, panics_in=panics_in, player=play_transactions, more=transactions_of
    )


def compare(case: Case, steps: list[Step]) -> tuple[dict[str, Any], int]:
    """Run both brokers and compare them; return one state, and the number of native requests."""
    without, _ = run_transactions(case, steps, lane=False)
    with_lane, count = run_transactions(case, steps, lane=True)
    for name, value in without.items():
        if name == "answers":
            # If a request waits for another request that ends the same half message, it may be
            # answered before or after that request's neighbours.
            for one, other in zip(value, with_lane[name], strict=True):
                assert sorted(frames_of(other)) == sorted(frames_of(one))
        else:
            assert with_lane[name] == value, name
    return with_lane, count


@pytest.mark.parametrize("name", CASES)
@seeds(1, long=3)
def test_transactions_give_the_same_broker_through_the_lane(name, seed):
    script = TransactionScript(seed, oddity=0)
    steps = script.write(turns=25)
    state, count = compare(CASES[name], steps)
    ended = state["committed"] + state["rolled back"]
    assert ended > 10
    assert state["repeated"] > 0
    if name != "bounded":
        assert count > 0.9 * (script.plain_count + ended) - 10


@pytest.mark.parametrize("name", CASES)
@examples(3, long=10)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_transactions_and_disturbances_give_the_same_broker(name, seed, oddity):
    compare(CASES[name], TransactionScript(seed, oddity=oddity).write(turns=20))


@pytest.mark.parametrize("method", ["stage", "staged_ends", "keep_halves", "encode"])
def test_a_panic_before_the_answers_changes_nothing_but_the_path(method):
    steps = TransactionScript(1, oddity=0).write(turns=10)
    without, _ = run_transactions(CASES["asynchronous"], steps, lane=False)
    panicked, _ = run_transactions(CASES["asynchronous"], steps, lane=True, panics_in=method)
    assert panicked == without


def test_ends_that_a_panic_kept_from_the_log_leave_their_half_messages_open():
    steps = TransactionScript(1, oddity=0).write(turns=10)
    state, count = run_transactions(CASES["asynchronous"], steps, lane=True, panics_in="place")
    assert count > 0
    assert state["ending"] == 0
    ended = state["queues"].get((OP_HALF_TOPIC, 0), (0, []))[1]
    assert len(ended) == len(state["ended"]) == state["committed"] + state["rolled back"]


async def play_and_delete(broker: ScriptedBroker, steps: list[Step]) -> None:
    """Play a script in which the topics of half messages may be deleted."""
    for step in steps:
        if step.action != "delete topics":
            await play_transactions(broker, [step])
            continue
        for topic in [*broker.broker.tables.topics.table]:
            if not broker.broker.tables.topics.is_reserved(topic):
                broker.broker.tables.topics.remove(topic)
                broker.broker.store.delete_topic(topic)


def parked(broker: ScriptedBroker) -> dict[str, Any]:
    entries = broker.queue_entries().get((PARKED_TOPIC, 0), (0, []))[1]
    counts = broker.broker.deferred.parking.counts
    return transactions_of(broker) | {"parked": len(entries), "counts of parked": dict(counts)}


def test_a_commit_for_a_deleted_topic_is_parked_on_both_paths():
    script = TransactionScript(1, oddity=0)
    steps = script.write(turns=10)
    steps += [Step("delete topics"), Step("settle")]
    for _ in range(6):
        steps += [script.ends(0, b"", 4), *[Step("settle")] * 3]
    found = [
        run(CASES["asynchronous"], steps, lane=lane, player=play_and_delete, more=parked)[0]
        for lane in (False, True)
    ]
    for name in ("parked", "counts of parked", "committed", "rolled back", "ended", "ending"):
        assert found[0][name] == found[1][name], name
    assert found[0]["parked"] > 0
    assert found[0]["ending"] == 0
