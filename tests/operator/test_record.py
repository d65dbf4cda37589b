# SPDX-License-Identifier: Apache-2.0
"""The consensus record of a broker group is kept in a Lease of a real API server."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from cometmq.ha.places.kubernetes import KubernetesRecord, api_at
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.testing.ha.port_contract import CHECKS, SECOND, new_record


@pytest.fixture
async def record(kube, namespace):
    async with AsyncExitStack() as stack:

        def opened(token=None):
            api = api_at("127.0.0.1", kube.port, lambda: token or kube.token, kube.certificate)
            one = KubernetesRecord(api, namespace, "orders", timeout_ms=30_000)
            stack.push_async_callback(one.close)
            return one

        yield opened


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_record_in_a_lease_keeps_the_contract(kube, namespace, record, check):
    async def delete() -> None:
        await asyncio.to_thread(kube.kubectl, "delete", "lease", "orders", "-n", namespace)

    await check(record(), record(), delete)


async def test_a_person_who_touches_the_lease_makes_the_next_write_fail(kube, namespace, record):
    port = record()
    base = (await port.create(new_record())).written
    assert base
    label = ("label", "lease", "orders", "-n", namespace, "team=sales")
    await asyncio.to_thread(kube.kubectl, *label)
    assert (await port.replace(base, base.record.renewed())).answer is Answer.CONFLICT
    found = await port.read()
    assert found
    assert found.record == base.record
    assert (await port.replace(found, found.record.elected(SECOND, 2))).answer is Answer.APPLIED
    lease = await asyncio.to_thread(kube.objects, "lease", "orders", "-n", namespace)
    assert lease["metadata"]["labels"] == {"team": "sales"}
    assert lease["spec"]["holderIdentity"] == "orders-1"
    assert lease["spec"]["leaseTransitions"] == 2


async def test_a_lease_of_the_same_name_and_another_uid_is_left_alone(kube, namespace, record):
    """A restored etcd backup may repeat versions, but not uids."""
    port = record()
    base = (await port.create(new_record())).written
    assert base
    uid, _, version = base.version.partition("/")
    stranger = type(base)(base.record, f"{uid[:-1]}{'0' if uid[-1] != '0' else '1'}/{version}")
    answer = (await port.replace(stranger, base.record.renewed())).answer
    assert answer in (Answer.CONFLICT, Answer.UNKNOWN)
    assert await port.read() == base


async def test_a_wrong_token_is_named(record):
    with pytest.raises(RecordUnreachable, match=r"401.*Unauthorized"):
        await record("wrong").read()
