# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker import names
from cometmq.remoting import remarks
from cometmq.remoting.errors import ServerError


@pytest.mark.parametrize("topic", ["T", "%RETRY%group", "a-b_c|d", "x" * 127])
def test_legal_topic_names_pass(topic: str) -> None:
    names.check_topic(topic)


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
    with pytest.raises(ServerError) as raised:
        names.check_topic(topic)
    assert raised.value.remark == remark
    assert raised.value.code == 1


@pytest.mark.parametrize("group", ["G", "my.group", "gruppe-ü", "a|b%c", "x" * 255])
def test_groups_of_clients_in_any_language_pass(group: str) -> None:
    names.check_group(group)


@pytest.mark.parametrize(
    "group", ["", " ", "a/b", "a\\b", "..", "a..b", "nul\0", "tab\t", "a@b", "\ud800", "x" * 256]
)
def test_dangerous_group_names_are_refused(group: str) -> None:
    with pytest.raises(ServerError):
        names.check_group(group)


def test_a_group_can_retry_only_if_its_retry_topic_fits_into_a_record() -> None:
    assert names.can_retry("x" * 120)
    assert not names.can_retry("x" * 121)
    assert not names.can_retry("ü" * 61)
