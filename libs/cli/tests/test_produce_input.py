# SPDX-License-Identifier: Apache-2.0
"""`produce` names the line, body or option of a message that cannot be sent."""

import re

import pytest

from cometmq.client import InvalidArgument, Message
from cometmq.insight import message_json
from cometmq.testing.remoting.hostile_json import hostile


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"body":"x","tags":"T"}', "unknown key tags; did you mean tag?: "),
        (b'{"bdy":"x"}', "unknown key bdy; did you mean body?: "),
        (b'{"value":"x"}', "unknown key value: "),
        (b'{"body":"x","tag":1}', "tag: Expected `str | null`, got `int`: b'{"),
        (b'{"body":"x","properties":{"a":1}}', "properties[...]: Expected `str`, got `int`: "),
        (b'{"body_base64":"x-"}', "body_base64: "),
        (b'["x"]', "not a message: Expected `object`, got `array`: "),
        (b"plain", "not JSON: "),
        (
            b'{"body":"x","properties":{"DELAY":"3"}}',
            'properties must not have DELAY; give the key "delay_level" instead: ',
        ),
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_key(line, said):
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
        message_json.parse(line, defaults=Message("T", b""))


def test_hostile_lines_are_refused():
    for name, line in hostile({"body": "a", "properties": {"a": "b"}, "delay_level": 3}):
        try:
            message_json.parse(line, defaults=Message("T", b""))
        except InvalidArgument:
            continue
        assert line.startswith(b"{"), name


def test_the_number_of_a_malformed_line_is_named(pipe, topic):
    result = pipe("produce", topic, "--json-lines", stdin=b'{"body":"a"}\n\n{"body":"b","k":1}\n')
    assert result.status == 1
    assert "cometmq: line 3: unknown key k: " in result.err
    blank = b'{"body":"x","properties":{"a":" "}}\n'  # only the client refuses it
    result = pipe("produce", topic, "--json-lines", stdin=blank)
    assert result.status == 2
    assert "cometmq: line 1: property names and values must not be blank: " in result.err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("-p", "DELAY=3"), "--property DELAY=3: give --delay-level 3\n"),
        (("-p", "TAGS=red"), "--property TAGS=red: give --tag red\n"),
        (("-p", "KEYS=a"), "--property KEYS=a: give --key a\n"),
        (("-p", "UNIQ_KEY=a"), "--property UNIQ_KEY=a: RocketMQ sets this property itself; "),
        (("-p", "a= "), "property names and values must not be blank: "),
        (("--tag", "a||b"), "the tag 'a||b' matches no subscription: "),
    ],
)
def test_a_wrong_option_is_named_without_a_body(call, args, line):
    refused = call("produce", "T", "x", *args, "-n", "127.0.0.1:1")
    refused.assert_refused(2, line)


def test_the_number_of_a_refused_body_is_named(ask, topic):
    refused = ask("produce", topic, "x", "y" * 5_000_000)
    assert refused.status == 1
    assert "cometmq: body 2: the message body has 5000000 bytes" in refused.err


def test_a_dash_is_standard_input(ask, pipe, topic):
    assert pipe("produce", topic, "-f", "-", stdin=b"a\nb\n").status == 0
    lines = ask("consume", topic, "--from", "first", "--max", 2, "--timeout", 60).out.splitlines()
    assert sorted(lines) == ["a", "b"]
