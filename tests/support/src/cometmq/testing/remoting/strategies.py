# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for messages, batches and properties.

Import this module only where Hypothesis is installed; it is not a runtime dependency.
"""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from cometmq.remoting.message.batch import BatchItem
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import render_properties

_TOPIC_ALPHABET = "%|-_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_PROPERTY_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)


def topics() -> SearchStrategy[str]:
    """Generate topic names that a broker accepts."""
    return st.text(_TOPIC_ALPHABET, min_size=1, max_size=127)


def property_maps() -> SearchStrategy[dict[str, str]]:
    """Generate properties that survive encoding: no separators and no empty strings."""
    texts = st.text(_PROPERTY_CHARACTERS, min_size=1, max_size=12)
    return st.dictionaries(texts, texts, max_size=6)


def hosts() -> SearchStrategy[bytes]:
    """Generate packed hosts: an IPv4 or IPv6 address and a port."""
    addresses = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
    return st.builds(
        lambda address, port: address + port.to_bytes(4, "big"), addresses, st.integers(0, 65535)
    )


def new_messages() -> SearchStrategy[NewMessage]:
    """Generate messages that a store accepts."""
    return st.builds(
        NewMessage,
        topic=topics(),
        queue_id=st.integers(0, 2**31 - 1),
        flag=_INT32,
        sys_flag=st.integers(0, 2**31 - 1),
        born_timestamp=_INT64,
        born_host=hosts(),
        store_host=hosts(),
        body=st.binary(max_size=200),
        properties=st.builds(render_properties, property_maps()),
        reconsume_times=_INT32,
        prepared_offset=_INT64,
        tag_code=_INT32,
        keys=st.just(()),
        wait=st.booleans(),
    )


def batch_items() -> SearchStrategy[BatchItem]:
    """Generate items of a batch send."""
    return st.builds(
        BatchItem,
        flag=_INT32,
        body=st.binary(max_size=100),
        properties=st.builds(render_properties, property_maps()),
    )
