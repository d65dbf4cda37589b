# SPDX-License-Identifier: Apache-2.0
from typing import Any

from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers.clients import disconnect_client
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands.clients import DisconnectClient
from cometmq.testing.broker import FakePeer, MemoryStore, memory_broker


def test_all_connections_of_one_client_are_closed():
    broker = memory_broker(MemoryStore())
    peers = [FakePeer(f"127.0.0.1:{port}") for port in (40_001, 40_002, 40_003)]
    for peer, name in zip(peers, ("mine", "mine", "other"), strict=True):
        client = Client(peer, name, language=0, version=401, seen_ms=0)
        broker.clients.consumers.register(ConsumerData(group_name="G"), client)
        broker.clients.producers.register("P", client)

    def disconnect(client_id) -> int:
        call: Any = Call(
            Code.DISCONNECT_CLIENT, DisconnectClient(client_id), body=b"", peer=FakePeer()
        )
        return disconnect_client(broker, call).count

    assert disconnect("nobody") == 0
    assert disconnect("mine") == 2
    assert [peer.is_open for peer in peers] == [False, False, True]
