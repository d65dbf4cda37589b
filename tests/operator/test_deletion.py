# SPDX-License-Identifier: Apache-2.0
"""A deleted group waits for its consumers, unless someone tells the operator not to wait."""

from cometmq.peers.ports import HOST
from cometmq.testing.broker.clients import Client


async def test_a_deletion_waits_until_the_backlog_is_known_and_can_be_forced(world):
    async with world.operated():
        await world.start_group()
        for app in world.brokers.values():
            await app.kill()
        world.brokers.clear()
        await world.kubectl("delete", "bg", "orders", "--wait=false")

        async def waits():
            return await world.condition("Progressing") == ("True", "BacklogUnknown")

        await world.until(waits, "the deletion waits, as nobody knows the backlog")
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/skip-drain=true")
        await world.until(world.is_gone, "the group is deleted")
        assert (await world.get("lease", "-l", "cometmq.io/broker-group=orders"))["items"] == []


async def test_a_deletion_waits_until_consumers_have_consumed_everything(world):
    async with world.operated():
        status = await world.start_group()
        client = Client(f"{HOST}:{world.main[int(status['master'][-1])]}")
        assert (await client.send(b"one")).code == 0
        assert (await client.send(b"two")).code == 0
        assert (await client.pull()).code == 0  # a pull makes the consumer group known
        await client.commit(1)
        await world.kubectl("delete", "bg", "orders", "--wait=false")

        async def waits():
            return (await world.status()).get("drain") == {
                "remainingMessages": 1, "waitingFor": ["G: 1"],
            }  # fmt: skip

        await world.until(waits, "the deletion waits for the group that is behind")
        assert await world.condition("Progressing") == ("True", "Backlog")
        # Brokers accept messages until all producers have asked for routes again.
        assert (await client.send(b"three")).code == 0
        await client.commit(2)

        async def grows():
            return (await world.status())["drain"]["remainingMessages"] == 1

        await world.until(grows, "a late message counts")
        await client.commit(3)
        await client.close()
        await world.until(world.is_gone, "the group is deleted")


async def test_an_operator_that_starts_during_a_deletion_waits_for_consumers_too(world):
    """The operator's first pass over the group runs before its elector has read the record."""
    async with world.operated("one") as first:
        status = await world.start_group()
        client = Client(f"{HOST}:{world.main[int(status['master'][-1])]}")
        assert (await client.send(b"one")).code == 0
        assert (await client.pull()).code == 0  # a pull makes the consumer group known
        await client.commit(0)
        await first.stop()
        await world.kubectl("delete", "bg", "orders", "--wait=false")
        async with world.operated("two"):

            async def waits():
                return (await world.status()).get("drain") == {
                    "remainingMessages": 1, "waitingFor": ["G: 1"],
                }  # fmt: skip

            await world.until(waits, "the deletion waits for the group that is behind")
            await client.commit(1)
            await client.close()
            await world.until(world.is_gone, "the group is deleted")


async def test_an_empty_group_is_deleted_at_once(world):
    async with world.operated():
        await world.start_group()
        await world.kubectl("delete", "bg", "orders", "--wait=false")
        await world.until(world.is_gone, "the group is deleted")
