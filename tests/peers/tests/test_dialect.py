# SPDX-License-Identifier: Apache-2.0
"""Tests the parser for the JSON dialect of RocketMQ's Java programs."""

import pytest

from cometmq.peers.dialect import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[ ]", []),
        (' {"a" : [1, 2.5, null, true] } ', {"a": [1, 2.5, None, True]}),
        ('{0:"x",1:"y"}', {"0": "x", "1": "y"}),
        ('{"t":{{"b":1,"a":"q"}:7}}', {"t": {'{"a": "q", "b": 1}': 7}}),
        (r'{"{\"b\":1,\"a\":\"q\"}":7}', {'{"a": "q", "b": 1}': 7}),
    ],
)
def test_bare_and_object_keys_are_read(text: str, value: object) -> None:
    assert parse(text) == value
