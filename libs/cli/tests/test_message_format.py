# SPDX-License-Identifier: Apache-2.0
"""The percent language of `consume --format`."""

import pytest

from cometmq.cli.consuming.message_format import HELP, compiled
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import local_time
from cometmq.client import InvalidArgument, MessageQueue
from cometmq.client.message import MessageExt


def message(**changes):
    facts = {
        "topic": "orders", "body": b"\xffbody", "tag": "paid", "keys": ("k1", "k2", "ID"),
        "properties": {"color": "red", "KEYS": "k1 k2", "size": "5"}, "message_id": "ID",
        "offset_message_id": "OFF", "queue": MessageQueue("orders", "broker-a", 3),
        "queue_offset": 255, "physical_offset": 1, "flag": 0, "sys_flag": 0,
        "reconsume_times": 2, "born_timestamp": 1_000_000_000_000, "born_host": "h:1",
        "store_timestamp": 1_800_000_000_123, "store_host": "h:2",
    }  # fmt: skip
    return MessageExt(**{**facts, **changes})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%t %b %p %o %g %m %O %r %i", b"orders broker-a 3 255 paid ID OFF 2 7"),
        ("%k %K %V %H", b"k1 k2 5 5 2"),
        ("%v", b"\xffbody"),
        ("%v{hex} %v{base64} %k{json}", b'ff626f6479 /2JvZHk= "k1 k2"'),
        ("%o{hex}", b"ff"),
        ("%d %D", b"1800000000123 1000000000000"),
        ("%d{iso}", b"2027-01-15T08:00:00.123Z"),
        ("%d{strftime[%F %H:%M]}", b"2027-01-15 08:00"),
        ("%h{%k=%v;}", b"color=red;size=5;"),
        ("%h{{%k%%}\\n}", b"{color%}\n{size%}\n"),
        ("%h", b"color=red\nsize=5\n"),
        ("100%% \\t\\n\\r\\\\\\0\\x41\\xff", b"100% \t\n\r\\\0A\xff"),
        ("ä %g", "ä paid".encode()),
        ("", b""),
    ],
)
def test_each_escape(text, shown):
    assert compiled(text)(message(), 7) == shown


@pytest.mark.parametrize("born_ms", [2**63 - 1, 253_402_300_800_000, -1])
def test_a_time_that_a_sender_invented_is_empty(born_ms):
    evil = message(born_timestamp=born_ms)
    assert compiled("%D{iso}|%D{strftime[%F]}|%D")(evil, 7) == b"||%d" % born_ms
    assert f"bornTimestamp={born_ms}" in java_text.message(evil)
    assert local_time(born_ms) == ""


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("%y", 2, "%y is no escape: --format help lists all"),
        ("%", 2, "% is no escape"),
        ("a\\q", 3, "\\q is no escape"),
        ("a\\", 3, "is no escape"),
        ("%v{base46}", 2, "did you mean base64?"),
        ("%v{hex", 3, "{ has no }"),
        ("%d{strftim[%F]}", 2, "is no form here"),
        ("%h{%v %o}", 2, "%h{...} may contain %k, %v and %% only"),
    ],
)
def test_a_wrong_format_is_refused_with_its_place(text, place, why):
    with pytest.raises(InvalidArgument) as error:
        compiled(text)
    assert str(error.value).startswith(f"--format, character {place}: ")
    assert why in str(error.value)


def test_a_terminal_gets_no_control_characters_of_senders_and_a_pipe_gets_all():
    evil = message(body=b"\x1b[2J\xff", tag="\x1b]0;x\x07", properties={"\u202e": "\x1b[31m"})
    shown = compiled("%v|%g|%h{%k%v}", for_terminal=True)(evil, 1)
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert "\u202e" not in shown.decode()
    lines = message(body=b"a\nb", tag="c\nd", properties={"e\nf": "g\nh"})
    shown = compiled("%v|%g|%h{%k=%v}", for_terminal=True)(lines, 1)
    assert shown == rb"a%b|c\nd|e\nf=g\nh".replace(b"%", b"\n"), "only a body has lines"
    assert compiled("%g")(lines, 1) == b"c\nd"
    assert compiled("%v")(evil, 1) == b"\x1b[2J\xff"
    assert compiled("\\x1b[1m%t", for_terminal=True)(evil, 1) == b"\x1b[1morders", "the user's own"


def test_a_body_of_4_mb_is_rendered_whole():
    body = bytes(range(256)) * (16 << 10)
    assert compiled("%v")(message(body=body), 1) == body
    assert len(compiled("%v{hex}")(message(body=body), 1)) == 2 * len(body)


def test_the_help_names_every_escape_and_its_examples_are_right(call):
    assert call("consume", "T", "--format", "help").out == HELP
    for sign in "tpbokKgmvVOdDhirH%":
        assert f"%{sign}" in HELP
    for example in HELP.split("Examples: ")[1].split("'")[1::2]:
        compiled(example)


def test_headers_print_the_position_the_properties_and_the_body(ask, topic):
    assert ask("produce", topic, "hello", "-k", "k1", "--tag", "A", "-p", "color=red").status == 0
    shown = ask("consume", topic, "--last", 1, "--headers").out
    assert "tag A  keys k1  redeliveries 0\n  color: red\n\nhello\n\n" in shown
