# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import (
    REMARK_CHARS_MAX,
    AccessDenied,
    CommandError,
    ServerError,
    TopicNotExist,
    command_error,
)
from cometmq.remoting.refusals import explained, plain_remark

ACL = (
    "org.apache.rocketmq.acl.common.AclException: No acl config for ali, "
    "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:667)"
)


def test_a_refusal_by_access_control_is_in_plain_words() -> None:
    error = command_error(1, ACL, "10.0.0.1:10911")
    assert type(error) is AccessDenied
    assert isinstance(error, ServerError)
    assert (error.code, error.remark, error.address) == (1, ACL, "10.0.0.1:10911")
    assert str(error) == (
        "access denied: No acl config for ali (SYSTEM_ERROR 1 from 10.0.0.1:10911)"
    )


@pytest.mark.parametrize(
    ("remark", "plain"),
    [
        ("disk", "disk"),
        ("", ""),
        ("java.lang.NullPointerException: null, a.b.Store.put(Store.java:7)", "null"),
        ("java.lang.IllegalStateException: x, a.b.Store.lambda$put$0(Native Method)", "x"),
        (
            "topic[T] not exist, apply first please!\n See http://x.org/faq/ for further details.",
            "topic[T] not exist, apply first please!",
        ),
        ("no a.b.c here: x", "no a.b.c here: x"),
        (
            "java.lang.RuntimeException: Value ''5'' cannot be compared.",
            "Value '5' cannot be compared.",
        ),
        ("a name like '' or '' is empty", "a name like '' or '' is empty"),
    ],
)
def test_what_java_adds_is_left_out(remark: str, plain: str) -> None:
    assert plain_remark(remark) == plain
    assert command_error(1, remark).remark == remark


@pytest.mark.parametrize(
    ("remark", "meaning"),
    [
        (
            "No Any Consumer online in the consumer group: [g]",
            "no member of the consumer group is connected",
        ),
        ("The Consumer <g> <c@1> not online", "this member of the group is not connected"),
        ("the producer group[g] not exist", "no member of the producer group is connected"),
        ("disk", "the server failed or refused the request"),
    ],
)
def test_missing_clients_are_no_failures_of_the_server(remark: str, meaning: str) -> None:
    assert str(command_error(1, remark)) == f"{meaning}: {remark} (SYSTEM_ERROR 1)"


def test_every_code_has_a_message() -> None:
    for code in (*ResponseCode, 4711):
        text = str(command_error(code, "why", "h:1"))
        assert text.endswith(f" {int(code)} from h:1)")
        assert ": why (" in text
    assert type(command_error(4711, None)) is CommandError
    assert "the topic does not exist" in str(TopicNotExist("x"))


@pytest.mark.parametrize(
    ("remark", "meaning"),
    [
        ("", "the server is overloaded, try again later"),
        ("[REJECTREQUEST]system busy", "the server is overloaded, try again later: "),
        (
            "the new master 10.0.0.2:10911 is not open yet: no connection",
            "no master of the broker group can be reached now, try again later: the new master",
        ),
        (
            "the new master 10.0.0.2:10911 did not answer: connection lost",
            "no master of the broker group can be reached now, try again later: the new master",
        ),
    ],
)
def test_a_master_that_cannot_be_reached_is_not_called_overloaded(
    remark: str, meaning: str
) -> None:
    text = explained(ResponseCode.SYSTEM_BUSY, remark, "10.0.0.1:10911", is_access=False)
    assert text.startswith(meaning)


def test_an_error_keeps_the_beginning_of_a_long_remark():
    error = command_error(1, "x" * 16_000_000)
    assert error.remark == "x" * REMARK_CHARS_MAX + "... (16000000 characters)"
    assert command_error(1, "x" * REMARK_CHARS_MAX).remark == "x" * REMARK_CHARS_MAX
