# SPDX-License-Identifier: Apache-2.0
"""Messages that consumers send back are stored by the lane exactly as by the handler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.broker import Broker
from cometmq.broker.lanes import lane as lane_module
from cometmq.broker.native import IS_BUILT
from cometmq.broker.statistics.detours import SlowReason
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import Step, frame

from . import send_runs, send_script, test_access
from .send_runs import CASES, Case

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

BACK = int(RequestCode.CONSUMER_SEND_MSG_BACK)
GROUPS = ("g", "h")


class Script(send_script.Script):
    """Sends, and requests that send their messages back."""

    def __init__(self, seed: int, *, oddity: float) -> None:
        super().__init__(seed, oddity=oddity)
        self.backs: list[tuple[dict[str, str], bytes, float, bool, bool]] = []
        self.framing: Callable[[], Callable[..., bytes]] = lambda: frame

    def write(self, turns: int) -> list[Step]:
        for turn in range(turns):
            peer = self.rng.randrange(send_script.PEERS)
            self.cut(peer, b"".join(self.request() for _ in range(4)), count_max=3)
            self.steps.append(Step("settle"))
            for _ in range(self.rng.randrange(5) if turn else 0):
                self.back(peer)
            if self.odd(0.3):
                self.disturb()
            self.steps.append(Step("settle"))
        self.steps += [Step("heal"), Step("settle")]
        return self.steps

    def header(self, *, is_batch: bool) -> dict[str, str]:
        ext = super().header(is_batch=is_batch)
        if self.odd(0.5):
            ext["j"] = self.rng.choice(["2", "15", "16", "17", "2147483647"])
        return ext

    def properties(self, *, is_item: bool = False) -> str:
        text = super().properties(is_item=is_item)
        if self.odd(0.3):
            pair = self.rng.choice([
                "RETRY_TOPIC\x01Payments", "ORIGIN_MESSAGE_ID\x010A0B", "RETRY_TOPIC\x01",
                "KEYS\x01again", "REAL_TOPIC\x01T", "REAL_QID\x013",
            ])  # fmt: skip
            text = f"{pair}\x02{text}"
        return text

    def back(self, peer: int) -> None:
        """Append a request whose offset is known only when the script is played."""
        rng = self.rng
        ext = {
            "offset": "", "group": rng.choice(GROUPS), "originMsgId": "0A0B", "unitMode": "false",
            "delayLevel": rng.choice(["0", "0", "1", "3", "18", "25"]), "maxReconsumeTimes": "16",
            "originTopic": send_script.TOPIC,
        }  # fmt: skip
        if self.odd(0.2):
            ext.pop(rng.choice([name for name in ext if name != "offset"]))
        if self.odd(0.2):
            name = rng.choice(["delayLevel", "maxReconsumeTimes", "unitMode", "group"])
            ext[name] = rng.choice(["-1", "0", "1", "true", "x", "ü", "no group"])
        body = b"x" if self.odd(0.05) else b""
        self.steps.append(Step("back", peer, amount=len(self.backs)))
        self.backs.append((ext, body, rng.random(), self.odd(0.1), rng.random() < 0.5))

    async def play(self, broker: ScriptedBroker, steps: list[Step]) -> None:
        framed = self.framing()
        for group in GROUPS:
            broker.broker.tables.groups.put(
                SubscriptionGroupConfig(group_name=group, retry_queue_nums=2)
            )
        for number, step in enumerate(steps):
            if step.action != "back":
                await send_runs.play(broker, [step])
                continue
            ext, body, place, is_wrong, is_binary = self.backs[step.amount]
            offsets = offsets_of(broker) or [0]
            offset = offsets[int(place * len(offsets))] + is_wrong
            data = framed(
                BACK, {**ext, "offset": str(offset)}, body, opaque=number, is_binary=is_binary
            )
            await send_runs.play(broker, [Step("receive", step.peer, data)])


def offsets_of(broker: ScriptedBroker) -> list[int]:
    """Return where the records of real topics begin."""
    return sorted(
        row[0]
        for (topic, _), (_, rows) in broker.queue_entries().items()
        if topic in {send_script.TOPIC, "Payments"}
        for row in rows
    )


def figures(broker: ScriptedBroker) -> dict[str, Any]:
    stats = broker.broker.stats
    return {
        "sent back": stats.send_back_count,
        "groups": {name: one.send_back_count for name, one in stats.groups.items()},
        "parked": broker.broker.deferred.parking.counts,
        "known groups": sorted(broker.broker.tables.groups.table),
    }


def compare(case: Case, script: Script, turns: int) -> tuple[int, int]:
    """Compare a broker without the lane to one with it; return how many requests the lane took,
    and how many messages were sent back.
    """
    steps = script.write(turns)
    options: Any = {"player": script.play, "more": figures}
    without, _ = send_runs.run(case, steps, lane=False, **options)
    counts = []
    for is_direct in (False, True):
        found, count = send_runs.run(case, steps, lane=True, is_direct=is_direct, **options)
        for name, value in without.items():
            if name == "answers":
                for one, other in zip(value, found[name], strict=True):
                    assert frames_of(other) == frames_of(one)
            assert found[name] == value, name
        counts.append(count)
    return min(counts), without["sent back"]


@pytest.mark.parametrize("name", CASES)
@seeds(1, long=3)
def test_messages_sent_back_give_the_same_broker_through_the_lane(name: str, seed: int) -> None:
    script = Script(seed, oddity=0)
    count, back_count = compare(CASES[name], script, turns=40)
    assert len(script.backs) > 40
    assert back_count == (0 if CASES[name].needs_replicas else len(script.backs))
    if name != "bounded":
        # The retry topics are changes, after which a handler serves the first request of each kind.
        assert count > 0.9 * (script.plain_count + len(script.backs))


@pytest.mark.parametrize("name", ["asynchronous", "IPv6", "small files", "both"])
@examples(3, long=10)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_requests_and_disturbances_give_the_same_broker(
    name: str, seed: int, oddity: float
) -> None:
    compare(CASES[name], Script(seed, oddity=oddity), turns=25)


@pytest.mark.parametrize("oddity", [0, 0.3])
def test_signed_requests_give_the_same_broker(
    monkeypatch: pytest.MonkeyPatch, oddity: float
) -> None:
    monkeypatch.setattr(send_script, "frame", test_access.Signing(oddity).frame)
    script = Script(3, oddity=oddity)
    script.framing = lambda: test_access.Signing(oddity).frame
    case = Case({}, accounts=test_access.Signing.ACCOUNTS)
    count, back_count = compare(case, script, turns=40)
    assert back_count > 20
    assert count > (0 if oddity else 0.9 * (script.plain_count + back_count))


def slow_backs(broker: Broker) -> dict[SlowReason, int]:
    """Return how many messages were sent back through the handler, by reason."""
    counts = broker.measured.detours.counts
    return {reason: count for (code, reason), count in counts.items() if code == BACK}


class Sender:
    """A broker with a lane, and messages in it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.scripted = ScriptedBroker(storePathRootDir=str(root), brokerIP1="10.1.2.3", **options)
        self.broker = self.scripted.broker
        self.broker.tables.topics.create("Orders", queue_nums=4)
        self.peer, self.wire = self.scripted.connect()

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> list[int]:
        self.wire.sent.clear()
        self.scripted.receive(self.peer, frame(code, ext, body))
        await self.scripted.settle()
        return [
            decode_header(form, head).code for form, head, _ in frames_of(bytes(self.wire.sent))
        ]

    async def send_back(self, offset: int, **ext: str) -> list[int]:
        fields = {"offset": str(offset), "group": "g", "delayLevel": "0", **ext}
        return await self.ask(BACK, fields)


async def test_what_a_group_may_do_is_learned_and_forgotten(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    broker = sender.broker
    for _ in range(3):
        assert await sender.ask(310, test_access.SEND, b"x") == [0]
    (offset, *_) = offsets_of(sender.scripted)
    for _ in range(4):
        assert await sender.send_back(offset) == [0]
    # The first one creates the retry topic; the second one is the first to a known topic.
    assert slow_backs(broker) == {SlowReason.FIRST: 2}

    retries = broker.stats.send_back_count
    group = broker.tables.groups.table["g"]
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    for _ in range(2):  # the dead-letter topic is left to the handler
        assert await sender.send_back(offset) == [0]
    assert "%DLQ%g" in broker.tables.topics.table
    assert sum(slow_backs(broker).values()) == 4
    broker.tables.groups.put(group)
    assert await sender.send_back(offset, maxReconsumeTimes="0") == [0]
    assert broker.stats.send_back_count == retries + 3
    assert await sender.send_back(offset + 1) == [ResponseCode.SYSTEM_ERROR]


async def test_long_messages_and_those_on_disk_are_left_to_the_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(tmp_path)
    assert await sender.ask(310, test_access.SEND, b"x" * 70_000) == [0]
    (offset,) = offsets_of(sender.scripted)
    for _ in range(3):
        assert await sender.send_back(offset) == [0]
    assert slow_backs(sender.broker) == {SlowReason.FIRST: 2, SlowReason.UNUSUAL: 1}

    monkeypatch.setattr(lane_module, "cached", lambda _lookup: None)
    assert await sender.send_back(offset) == [0]
    assert slow_backs(sender.broker)[SlowReason.UNUSUAL] == 2


async def test_rights_to_stored_topics_are_left_to_the_handler(tmp_path: Path) -> None:
    sender = Sender(tmp_path, aclCheckStoredTopic="true")
    assert await sender.ask(310, test_access.SEND, b"x") == [0]
    (offset,) = offsets_of(sender.scripted)
    for _ in range(3):
        assert await sender.send_back(offset) == [0]
    assert slow_backs(sender.broker) == {SlowReason.UNUSUAL: 3}
