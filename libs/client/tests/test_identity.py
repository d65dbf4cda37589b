# SPDX-License-Identifier: Apache-2.0
"""Client ids and unique keys of messages."""

import time

import pytest

from cometmq.client import ClientOptions
from cometmq.client.namespace import client_id_of, local_ip, unique_ids


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


def test_clients_of_one_moment_have_ids_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests freeze the clock; equal client ids would give all queues to both consumers."""
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1_729_555_200_000_000_000)
    options = ClientOptions(client_ip="10.0.0.1")
    assert client_id_of(options) != client_id_of(options)
    first, second = unique_ids(options), unique_ids(options)
    assert first.next_id()[:-12] != second.next_id()[:-12]
