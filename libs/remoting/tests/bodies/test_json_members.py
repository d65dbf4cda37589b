# SPDX-License-Identifier: Apache-2.0

import json
from random import Random
from typing import Any

import msgspec
import pytest

from cometmq.remoting.bodies import large
from cometmq.remoting.bodies.large import decode_members
from cometmq.remoting.errors import RemoteProtocolError

LETTERS = 'ab{}[],:"\\\n é'


def text(random: Random) -> str:
    return "".join(random.choice(LETTERS) for _ in range(random.randrange(12)))


def value(random: Random, depth: int) -> Any:
    kind = random.randrange(5 if depth else 3)
    if kind == 3:
        return [value(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 4:
        return {text(random): value(random, depth - 1) for _ in range(random.randrange(4))}
    return (random.randrange(1000), text(random), None)[kind]


def members(whole: dict[str, Any], random: Random) -> bytes:
    separators = random.choice(((",", ":"), (", ", ": "), (" ,\n", " :\t")))
    return json.dumps(whole, separators=separators, indent=random.choice((None, 1))).encode()


def decoded(data: bytes) -> tuple[list[dict[str, Any]], int]:
    steps, count = decode_members(memoryview(data), msgspec.json.decode), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_are_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(f"members {seed}")
    monkeypatch.setattr(large, "PART_BYTES", random.choice((1, 20, 100)))
    monkeypatch.setattr(large, "TEXT_BYTES_MAX", 200)
    whole = {f"{number}{text(random)}": value(random, 4) for number in range(60)}
    if seed % 2:
        whole = {name: {"v": one} for name, one in whole.items()}
    parts, _ = decoded(members(whole, random))
    assert [item for part in parts for item in part.items()] == list(whole.items())
    assert len(parts) > 1


def test_a_text_longer_than_a_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PART_BYTES", 10)
    monkeypatch.setattr(large, "TEXT_BYTES_MAX", 50)
    data = json.dumps({"a": {"b": "x" * 100}, "c": 1}).encode()
    with pytest.raises(RemoteProtocolError, match="longer than 50 bytes"):
        decoded(data)


def test_flat_members_are_cut_without_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PART_BYTES", 100)
    data = json.dumps({f"t{number}": {"perm": 6} for number in range(1_000)}, separators=(",", ":"))
    parts, step_count = decoded(data.encode())
    assert step_count == len(parts) - 1
