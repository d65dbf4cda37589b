# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of clients in several languages."""

import pytest

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat
from cometmq.remoting.errors import RemoteProtocolError


def test_the_cpp_client_sends_ordinals_and_numbers_as_text() -> None:
    """The C++ client's jsoncpp encoder writes enumerations as numbers and versions as strings."""
    body = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,'
        b'"groupName":"G","messageModel":0,"subscriptionDataSet":[{"codeSet":["2598919"],'
        b'"subString":"TagA","subVersion":"1795163103474","tagsSet":["TagA"],"topic":"T"}]}]}\n'
    )

    (consumer,) = decode_json(Heartbeat, body).consumer_data_set

    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "BROADCASTING"
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.code_set) == (1795163103474, [2598919])


@pytest.mark.parametrize("ordinal", range(6))
def test_a_name_and_its_ordinal_mean_the_same(ordinal: int) -> None:
    by_ordinal = decode_json(ConsumerData, b'{"consumeFromWhere":%d}' % ordinal)

    assert decode_json(ConsumerData, encode_json(by_ordinal)) == by_ordinal
    assert by_ordinal.consume_from_where.startswith("CONSUME_FROM_")


def test_a_name_of_a_newer_client_is_kept() -> None:
    assert decode_json(ConsumerData, b'{"consumeType":"CONSUME_NEW"}').consume_type == "CONSUME_NEW"


@pytest.mark.parametrize("value", [b"-1", b"9", b"1.5", b"{}", b"[1]"])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_json(ConsumerData, b'{"messageModel":%s}' % value)
