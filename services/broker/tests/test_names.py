# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable

import pytest

from cometmq.broker import names
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import ServerError


def remark_of(check: Callable[[str], None], name: str) -> str | None:
    """Return the remark with which a name is refused, or None if it is accepted."""
    try:
        check(name)
    except ServerError as error:
        return error.remark if error.code == ResponseCode.SYSTEM_ERROR else repr(error)
    return None


@pytest.mark.parametrize("topic", ["T", "%RETRY%group", "a-b_c|d", "x" * 127])
def test_legal_topic_names_pass(topic: str) -> None:
    assert remark_of(names.check_topic, topic) is None


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", remarks.TOPIC_BLANK),
        ("  ", remarks.TOPIC_BLANK),
        ("bad*name", remarks.TOPIC_ILLEGAL),
        ("../up", remarks.TOPIC_ILLEGAL),
        ("nul\0", remarks.TOPIC_ILLEGAL),
        ("line\n", remarks.TOPIC_ILLEGAL),
        ("grün", remarks.TOPIC_ILLEGAL),
        ("x" * 128, remarks.TOPIC_TOO_LONG),
    ],
)
def test_other_topic_names_get_rocketmqs_answer(topic: str, remark: str) -> None:
    assert remark_of(names.check_topic, topic) == remark


@pytest.mark.parametrize("group", ["G", "my.group", "gruppe-ü", "a|b%c", "x" * 255])
def test_groups_of_clients_in_any_language_pass(group: str) -> None:
    assert remark_of(names.check_group, group) is None


@pytest.mark.parametrize(
    "group", ["", " ", "a/b", "a\\b", "..", "a..b", "nul\0", "tab\t", "a@b", "\ud800", "x" * 256]
)
def test_dangerous_group_names_are_refused(group: str) -> None:
    assert remark_of(names.check_group, group) is not None


def test_a_group_can_retry_only_if_its_retry_topic_fits_into_a_record() -> None:
    assert names.can_retry("x" * 120)
    assert not names.can_retry("x" * 121)
    assert not names.can_retry("ü" * 61)
