# SPDX-License-Identifier: Apache-2.0

from cometmq.broker.clients.producers import Client, Producers
from cometmq.testing.broker import FakePeer


def client(peer: FakePeer, client_id: str = "c1", *, seen_ms: int = 0) -> Client:
    return Client(peer, client_id, language=0, version=401, seen_ms=seen_ms)


def test_a_connection_is_one_client_of_a_group() -> None:
    producers, peer = Producers(), FakePeer()

    producers.register("G", client(peer))
    producers.register("G", client(peer, seen_ms=5))

    assert [known.seen_ms for known in producers.clients("G")] == [5]
    assert (producers.group_count, producers.client_count) == (1, 1)


def test_a_client_is_found_until_its_last_group_leaves() -> None:
    producers, peer = Producers(), FakePeer()
    producers.register("G", client(peer))
    producers.register("H", client(peer))

    producers.unregister("G", peer)
    assert producers.find("c1") is peer
    producers.unregister("H", peer)

    assert producers.find("c1") is None


def test_the_newest_open_connection_of_a_client_counts() -> None:
    producers, old, new = Producers(), FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    producers.register("G", client(old))
    producers.register("G", client(new))
    assert producers.find("c1") is new

    new.is_open = False
    assert producers.find("c1") is old
    new.is_open = True
    producers.unregister("G", old)

    assert producers.find("c1") is new
    assert producers.find("c2") is None


def test_an_inner_producer_does_not_stand_in_for_a_client() -> None:
    """It needs no right to any topic, and would get the replies to the client with this id."""
    producers, asker, thief = Producers(), FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    producers.register("CLIENT_INNER_PRODUCER", client(thief))
    assert producers.find("c1") is None
    assert producers.peers_of("c1") == {thief}

    for peer in (asker, thief):
        producers.register("CLIENT_INNER_PRODUCER", client(peer))
    producers.register("G", client(asker))
    assert producers.find("c1") is asker


def test_a_client_that_changes_its_id_is_found_under_the_new_one_only() -> None:
    producers, peer = Producers(), FakePeer()
    producers.register("G", client(peer, "old"))
    producers.register("G", client(peer, "new"))

    assert producers.find("old") is None
    assert producers.find("new") is peer
    assert producers.client_count == 1
