# SPDX-License-Identifier: Apache-2.0
"""Orders by annotation: switchover, fence, and an accepted loss."""


async def test_a_switchover_by_annotation_runs_once(world):
    async with world.operated():
        status = await world.start_group()
        other = "orders-1" if status["master"] == "orders-0" else "orders-0"
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/switchover-to={other}")
        await world.until_status(master=other)
        group = await world.get("bg", "orders")
        assert "cometmq.io/switchover-to" not in group["metadata"].get("annotations", {})
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/switchover-to=billing-0")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return "not a pod of the group" in operation.get("message", "")

        await world.until(refused, "a wrong target is refused with a reason")


async def test_an_order_given_without_an_operator_is_carried_out_by_the_next(world):
    """The operator's first pass over the group runs before its elector has read the record."""
    async with world.operated("one") as first:
        status = await world.start_group()
        other = "orders-1" if status["master"] == "orders-0" else "orders-0"
        await first.stop()
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/switchover-to={other}")
        async with world.operated("two"):
            await world.until_status(master=other)
            operation = (await world.status())["lastOperation"]
            assert (operation["verb"], operation["result"]) == ("switchover-to", "Started")


async def test_a_fenced_master_is_followed_by_a_master_of_a_later_epoch(world):
    """Repeats the order until a later epoch has a master.

    On a busy machine, the order may arrive while the master is not responding, or the same broker
    may be elected again.
    """
    async with world.operated() as app:
        before = await world.start_group()

        async def is_replaced():
            group = await world.get("bg", "orders")
            status = group["status"]
            if status.get("master") and status["epoch"] > before["epoch"]:
                return True
            is_pending = "cometmq.io/fence" in group["metadata"].get("annotations", {})
            if not is_pending and status.get("lastOperation", {}).get("result") != "Started":
                annotation = f"cometmq.io/fence={before['master']}"
                await world.kubectl("annotate", "bg", "orders", annotation)
            return False

        await world.until(is_replaced, "a later epoch has a master")
        await world.until_status(phase="Running", inSyncCount=2)
        (figures,) = app.figures().groups
        assert figures.operations["fence", "Started"] >= 1


async def test_an_order_that_would_do_harm_is_refused(world):
    async with world.operated():
        status = await world.start_group()
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/rebuild={status['master']}")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return operation.get("verb") == "rebuild" and operation["result"] == "Refused"

        await world.until(refused, "the master is not rebuilt")
        assert (await world.status())["lastOperation"]["message"]


async def test_a_group_continues_after_a_power_failure_once_a_person_accepts_the_loss(
    world, monkeypatch, tmp_path
):
    rebooted = tmp_path / "boot_id"
    rebooted.write_text("after the power failure")
    async with world.operated():
        before = await world.start_group()
        for broker in world.brokers.values():
            await broker.kill()
        world.brokers.clear()
        monkeypatch.setattr("cometmq.runtime.process.system._BOOT_ID", rebooted)
        for ordinal in range(2):
            await world.start_broker(ordinal)

        async def acceptable():
            return (await world.status()).get("lossEpoch")

        epoch = await world.until(acceptable, "the loss can be accepted")
        assert epoch >= before["epoch"]
        assert await world.condition("ElectionPossible") == ("False", "NoCandidate")
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/accept-loss=0")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return operation.get("result") == "Refused" and operation["message"]

        message = await world.until(refused, "another loss is not accepted")
        assert f"cometmq.io/accept-loss={epoch}" in message
        assert (await world.get("lease", "orders"))["spec"]["leaseTransitions"] == epoch
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/accept-loss={epoch}")
        after = await world.until_status(phase="Running", inSyncCount=2)
        assert after["epoch"] > epoch
        operation = after["lastOperation"]
        assert (operation["verb"], operation["result"]) == ("accept-loss", "Done")
        reasons = [reason for reason, _ in await world.events()]
        assert "OperationDone" in reasons
        group = await world.get("bg", "orders")
        assert "cometmq.io/accept-loss" not in group["metadata"].get("annotations", {})
