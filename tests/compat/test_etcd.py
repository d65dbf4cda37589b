# SPDX-License-Identifier: Apache-2.0
"""The consensus record of a broker group is kept in a real etcd."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.peers.etcd import Etcd
from cometmq.testing.ha.port_contract import CHECKS, new_record

pytestmark = pytest.mark.compat

KEYS = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_record_in_etcd_keeps_the_contract(etcd, check):
    key = f"/cometmq/test/{next(KEYS)}"
    one, other = (EtcdRecord([etcd.endpoint], key, poll_interval_ms=20) for _ in range(2))

    async def delete() -> None:
        await asyncio.to_thread(etcd.delete, key)

    try:
        await check(one, other, delete)
    finally:
        await one.close()
        await other.close()


async def test_a_record_survives_the_death_of_etcd(tmp_path):
    with Etcd(tmp_path) as etcd:
        port = EtcdRecord([etcd.endpoint], "/cometmq/orders")
        base = (await port.create(new_record())).written
        assert base
        etcd.kill()
        with pytest.raises(RecordUnreachable):
            await port.read()
        assert (await port.replace(base, base.record.renewed())).answer is Answer.UNKNOWN
        etcd.start()
        assert await port.read() == base
        assert (await port.replace(base, base.record.renewed())).answer is Answer.APPLIED
        await port.close()
