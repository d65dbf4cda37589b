# SPDX-License-Identifier: Apache-2.0
"""The catalogue is complete and consistent, and matches its documentation."""

import msgspec
import pytest
from generators.commands import commands_page

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessage, SendMessageV2

DEAD = {13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 302}
OF_5X = {47, 60, 61, 217, 343, 345, 353, 354, 355, 400, 401, 402, 513}
OF_4_9_4 = {
    *range(10, 16), 17, *range(21, 24), *range(25, 44), 45, 46, *range(50, 55), *range(100, 107),
    *range(200, 217), *range(219, 225), *range(300, 330),
}  # fmt: skip
OF_5X_SERVED = {18, 225, 351, 352, 361, 370}
OF_5X_GROUPS_AND_POP = {*range(901, 909), *range(200_050, 200_057), 200_151}
TO_CLIENT = {39, 40, 220, 221, 307, 309, 326}


def test_every_live_code_of_4_9_4_is_there() -> None:
    own = {code for code in RequestCode if code.is_own}
    assert set(COMMANDS) == OF_4_9_4 - DEAD | OF_5X_SERVED | own


def test_codes_that_rocketmq_does_not_have_begin_at_30001() -> None:
    """RocketMQ may give any smaller number a meaning in its next release."""
    of_rocketmq = OF_4_9_4 | OF_5X | OF_5X_SERVED | OF_5X_GROUPS_AND_POP
    assert {code for code in RequestCode if not code.is_own} == of_rocketmq
    assert min(code for code in RequestCode if code.is_own) == 30_001


def test_both_forms_of_a_send_have_the_same_attributes() -> None:
    assert SendMessage.__struct_fields__ == SendMessageV2.__struct_fields__
    assert SendMessageV2.__struct_encode_fields__ == tuple("abcdefghijklm")
    assert SendMessage.__struct_encode_fields__[3] == "defaultTopicQueueNums"


@pytest.mark.parametrize("value", ["2147483648", "-2147483649", "1.5", "x", ""])
def test_a_number_that_is_no_java_int_is_refused(value: str) -> None:
    ext = dict.fromkeys(PullMessage.__struct_encode_fields__[:9], "1") | {"queueId": value}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(ext, PullMessage, strict=False)


def test_the_documentation_has_every_command() -> None:
    page = commands_page()
    titles = [f"## {int(code)} {RequestCode(code).name}" for code in COMMANDS]
    assert titles
    assert [title for title in titles if title not in page] == []
