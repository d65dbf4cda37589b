# SPDX-License-Identifier: Apache-2.0
"""Records in a Lease, tested with a server that imitates the API of leases and injects faults."""

import asyncio
import json

import pytest

from cometmq.ha.places.kubernetes import ANNOTATION, in_cluster, parse_place
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.ha.record import RecordDamaged
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.port_contract import SECOND, new_record


async def test_people_see_the_holder_and_the_epoch(fake):
    port = fake.record()
    base = (await port.create(new_record())).written
    assert base
    fake.lease["metadata"]["labels"] = {"team": "sales"}
    await port.replace(base, base.record.elected(SECOND, 4))
    assert fake.lease["spec"] == {"holderIdentity": "orders-1", "leaseTransitions": 4}
    assert fake.lease["metadata"]["labels"] == {"team": "sales"}
    assert json.loads(fake.lease["metadata"]["annotations"][ANNOTATION])["group"] == "orders"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'403 X\r\n\r\n{"message":"brokers may not create leases"}', "brokers may not create"),
        (b"502 X\r\n\r\n<html>a proxy", "<html>a proxy"),
    ],
    ids=["status", "text"],
)
async def test_a_refused_write_repeats_the_reason(fake, answer, reason):
    port = fake.record()
    fake.answer = b"HTTP/1.0 " + answer
    outcome = await port.create(new_record())
    assert outcome.answer is Answer.UNKNOWN
    assert outcome.reason.startswith(
        "cannot write the record in Kubernetes, lease mq/orders: the API server answered"
        f" {answer[:3].decode()}: {reason}"
    )


async def test_a_refused_read_repeats_the_reason(fake):
    port = fake.record(lambda: "wrong")
    with pytest.raises(RecordUnreachable, match=r"lease mq/orders: .*401.*Unauthorized"):
        await port.read()


async def test_a_lease_without_a_record_is_named_and_kept(fake):
    fake.lease = {"metadata": {"uid": "x", "resourceVersion": "1", "annotations": {}}, "spec": {}}
    port = fake.record()
    with pytest.raises(RecordDamaged, match=r"lease mq/orders is missing: .*delete it"):
        await port.read()
    assert (await port.create(new_record())).answer is Answer.CONFLICT


async def test_a_watch_continues_after_the_server_ends_it(fake):
    port = fake.record()
    async with asyncio.timeout(60):
        watched = aiter(port.watch())
        assert await anext(watched) is None
        base = (await port.create(new_record())).written
        assert base
        assert await anext(watched) == base
        fake.end_watches()
        outcome = await port.replace(base, base.record.renewed())
        assert await anext(watched) == outcome.written


async def test_the_token_is_read_for_each_request(fake):
    tokens = iter(["secret", "stale", "secret"])
    port = fake.record(lambda: next(tokens))
    assert await port.read() is None
    with pytest.raises(RecordUnreachable, match="401"):
        await port.read()
    assert await port.read() is None
    assert fake.connections == 1


async def test_an_unreadable_token_is_an_unreachable_record(fake, tmp_path):
    with pytest.raises(RecordUnreachable, match="token of the service account"):
        await fake.record((tmp_path / "token").read_text).read()


def test_outside_a_pod_the_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"ca\.crt cannot be read .* service account"):
        in_cluster(tmp_path)


@pytest.mark.parametrize("text", ["", "orders", "/orders", "mq/", "MQ/orders", "mq/or_ders"])
def test_a_place_is_a_namespace_and_a_name(text):
    with pytest.raises(ValueError, match="is not NAMESPACE/NAME"):
        parse_place(text)
