# SPDX-License-Identifier: Apache-2.0
"""Offsets as JSON: equal offsets yield equal text, and errors name the invalid text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.errors import OptionError
from cometmq.spark.options.offsets_json import (
    Queue,
    assigned_from_text,
    from_json,
    from_text,
    to_json,
    to_text,
)
from cometmq.testing.remoting.hostile_json import hostile

NAMES = st.text("abAB-_%", min_size=1, max_size=4)
QUEUES = st.builds(Queue, NAMES, NAMES, st.integers(0, 20))


@given(st.dictionaries(QUEUES, st.integers(0, 2**62)), st.randoms())
def test_text_is_canonical_and_round_trips(offsets, random) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)

    assert to_text(dict(shuffled)) == to_text(offsets)
    assert from_text(to_text(offsets), source="x") == offsets
    assert from_json(to_json(offsets), source="x") == offsets


def test_form_is_that_of_checkpoints() -> None:
    offsets = {Queue("T", "b", 2): 5, Queue("T", "b", 10): 6, Queue("A", "b", 0): 7}

    assert to_text(offsets) == '{"A":{"b":{"0":7}},"T":{"b":{"10":6,"2":5}}}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "invalid JSON"),
        ("[]", "Expected `object`, got `array`"),
        ('{"T":1}', "Expected `object`, got `int`"),
        ('{"T":{"b":[0]}}', "Expected `object`, got `array`"),
        ('{"T":{"b":{"x":1}}}', "matching regex"),
        ('{"T":{"b":{"0":"1"}}}', "Expected `int`, got `str`"),
        ('{"T":{"b":{"0":-3}}}', "Expected `int` >= -2"),
        ('{"T":{"b":{"0":true}}}', "Expected `int`, got `bool`"),
        ('{"$v":2}', "newer version"),
    ],
)
def test_invalid_text_is_named(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=r"^option `startingOffsets`: ") as caught:
        from_text(text, source="option `startingOffsets`")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hostile_text_is_named() -> None:
    cases = ((from_text, {"T": {"b": {"0": 1}}}), (assigned_from_text, {"T": {"b": [0]}}))
    for parse, sample in cases:
        for name, text in hostile(sample):
            try:
                parse(text.decode("latin-1"), source="x")
            except OptionError:
                continue
            assert text.startswith(b"{"), name
    with pytest.raises(OptionError, match="matching regex"):
        from_text('{"T":{"b":{"%s":1}}}' % ("9" * 5_000), source="x")
    with pytest.raises(OptionError, match="Expected `int`"):
        from_text('{"T":{"b":{"0":9223372036854775808}}}', source="x")


def test_assigned_queues() -> None:
    queues = assigned_from_text('{"T":{"b":[1,0],"a":[2]}}', source="assign")

    assert queues == [Queue("T", "a", 2), Queue("T", "b", 0), Queue("T", "b", 1)]


@pytest.mark.parametrize(
    "text", ["{}", '{"T":{"b":[]}}', '{"T":{"b":{"0":1}}}', '{"T":{"b":[-1]}}']
)
def test_invalid_assignments_are_named(text: str) -> None:
    with pytest.raises(OptionError, match=r"^assign: "):
        assigned_from_text(text, source="assign")
