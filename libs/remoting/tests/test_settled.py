# SPDX-License-Identifier: Apache-2.0
"""Changed content counts once two looks in a row have found it."""

from cometmq.remoting.settled import Settled


def taken(*looks: str) -> list[bool]:
    content = Settled("old")
    return [content.take(look) for look in looks]


def test_a_change_counts_at_the_second_look() -> None:
    assert taken("new", "new", "new") == [False, True, False]


def test_content_that_keeps_changing_does_not_count() -> None:
    assert taken("ne", "new", "newe", "newer") == [False] * 4


def test_a_change_that_is_taken_back_never_counts() -> None:
    assert taken("new", "old", "old", "new", "new") == [False, False, False, False, True]


def test_what_was_set_otherwise_is_not_a_change() -> None:
    content = Settled("old")
    content.used = "own"
    assert [content.take("own"), content.take("own")] == [False, False]
