# SPDX-License-Identifier: Apache-2.0
"""Client ids and unique keys of messages."""

from cometmq.client import ClientOptions
from cometmq.client.identity import client_id_of, local_ip, unique_ids


def test_a_client_id_has_all_its_parts() -> None:
    options = ClientOptions(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert client_id_of(options) == "10.0.0.1@i@u"
    assert client_id_of(options, suffix="STREAM") == "10.0.0.1@i@u@STREAM"
    assert client_id_of(ClientOptions()).startswith(local_ip() + "@")


def test_unique_keys_differ() -> None:
    first, second = unique_ids(ClientOptions()), unique_ids(ClientOptions())
    ids = {generator.next_id() for generator in (first, second) for _ in range(1000)}
    assert len(ids) == 2000
    assert {len(text) for text in ids} <= {32, 56}
