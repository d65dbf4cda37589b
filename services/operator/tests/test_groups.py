# SPDX-License-Identifier: Apache-2.0

from unittest.mock import AsyncMock, Mock

from structlog.testing import CapturingLogger

from cometmq.client.testing.waiting import eventually
from cometmq.operator.groups import Groups
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.reconcile import Context
from cometmq.runtime.clock import SystemClock

INVALID = {
    "metadata": {"namespace": "ns", "name": "g", "uid": "u", "generation": 1},
    "spec": {"nameServers": ["ns:9876"], "replicas": "three"},
}


async def test_an_invalid_spec_fails_its_pass_and_the_next_one_reads_it_again():
    """The API server rejects this spec unless it has a different version of the CRD."""
    api = AsyncMock()
    api.get.side_effect = [INVALID, None]  # the group is deleted before the second pass
    context = Context(
        api=api,
        image="",
        operator_namespace="ns",
        resync_ms=60_000,
        quiet_ms=60_000,
        wall_time=lambda: "",
    )
    log, figures = CapturingLogger(), OperatorFigures()
    groups = Groups(
        context, record_of=lambda *_: Mock(), clock=SystemClock(), log=log, figures=figures
    )
    groups.wake("ns", "g")
    await eventually(lambda: figures.passes["failed"])
    assert [(call.method_name, call.args) for call in log.calls] == [
        ("warning", ("group.unattended",))
    ]
    assert "replicas" in log.calls[0].kwargs["error"]
    groups.wake("ns", "g")
    await eventually(lambda: not len(groups))
    await groups.close()
    assert figures.passes == {"failed": 1, "done": 1}
