# SPDX-License-Identifier: Apache-2.0

import base64
from typing import Any
from unittest.mock import AsyncMock, Mock

from structlog.testing import CapturingLogger

from cometmq.client.testing.cluster import eventually
from cometmq.ha.places.memory import MemoryPlace
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.broker_groups.group import CONTROL_NAME, FINALIZER, TLS_SECRET
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.group_pass import GroupPass
from cometmq.operator.broker_groups.groups import Groups
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.member_access import PLAIN, MemberAccess
from cometmq.operator.engine.context import Context
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.secrets import AGE_MAX_MS, Secrets
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.clock import SystemClock
from cometmq.testing.operator.states import group

KEY = (KIND, "mq", "orders")
INVALID = {
    "metadata": {"namespace": "ns", "name": "g", "uid": "u", "generation": 1},
    "spec": {"nameServers": ["ns:9876"], "replicas": "three"},
}


async def test_an_invalid_spec_fails_its_pass_and_the_next_one_reads_it_again():
    """The API server rejects this spec unless it has a different version of the CRD."""
    api = AsyncMock()
    api.get.side_effect = [INVALID, None]  # the group is deleted before the second pass
    log, figures = CapturingLogger(), OperatorFigures()
    context = Context(
        api=api,
        resync_ms=60_000,
        quiet_ms=60_000,
        wall_time=lambda: "",
        secrets=Mock(),
        clock=SystemClock(),
        log=log,
    )
    groups = Groups(context, figures, record_of=lambda *_: Mock())
    groups.wake((KIND, "ns", "g"))
    await eventually(lambda: figures.passes["failed"])
    assert [(call.method_name, call.args) for call in log.calls] == [
        ("warning", ("group.unattended",))
    ]
    assert "replicas" in log.calls[0].kwargs["error"]
    groups.wake((KIND, "ns", "g"))
    await eventually(lambda: not len(groups))
    await groups.close()
    assert figures.passes == {"failed": 1, "done": 1}


class FakeApi:
    """Holds a BrokerGroup and Secrets; records what is written."""

    def __init__(self, **spec):
        metadata = {
            "namespace": "mq", "name": "orders", "uid": "u", "generation": 1,
            "finalizers": [FINALIZER],
        }  # fmt: skip
        self.group = {"metadata": metadata, "spec": {"nameServers": ["ns:9876"], **spec}}
        self.secrets: dict[str, dict[str, str]] = {}
        self.applied: list[str] = []
        self.status: dict[str, Any] = {}

    async def get(self, kind, _namespace, name):
        if kind == "Secret":
            data = self.secrets.get(name)
            return None if data is None else {"data": data}
        return self.group if kind == "BrokerGroup" else None

    async def list(self, _kind, _namespace, _selector):
        return []

    async def apply(self, body):
        self.applied.append(body["kind"])
        return {"metadata": {"resourceVersion": "1", "generation": 1}}

    async def patch(self, _kind, _namespace, _name, body, *, part=""):
        if part == "status":
            self.status = body["status"]

    async def create(self, *_arguments):
        return {}

    async def delete(self, *_arguments):
        return None


async def test_a_member_is_reached_as_before_while_its_secret_is_gone(tmp_path):
    api: Any = FakeApi()
    pem = base64.b64encode(self_signed_pem("brokers.test").encode()).decode()
    api.secrets["cert"] = {"ca.crt": pem}
    now_ms = 0
    secrets = Secrets(api, now_ms=lambda: now_ms, folder=tmp_path)
    context = Context(
        api=api, resync_ms=1, quiet_ms=1, wall_time=lambda: "", secrets=secrets,
        clock=SystemClock(), log=NO_LOG,
    )  # fmt: skip
    elector = GroupElector(MemoryPlace().port(), clock=SystemClock(), log=NO_LOG)
    work = GroupPass(KEY, context, elector)
    marks = {TLS_SECRET: "cert", CONTROL_NAME: "brokers.test"}
    template = {"metadata": {"annotations": marks}}
    live = Live(
        stateful_set={"spec": {"template": template}},
        pods={0: {"metadata": {"annotations": {}}}},
        claims=[],
    )
    assert await work._link(group(), live, 0) == PLAIN  # a pod from before the change
    link = await work._link(group(), live, 1)  # a pod that is missing will have the new template
    assert link == MemberAccess(await secrets.tls("mq", "cert"), "brokers.test")
    elector.links = {1: link}
    api.secrets.clear()
    now_ms += AGE_MAX_MS
    assert await work._link(group(), live, 1) == link


async def test_a_group_whose_secret_is_missing_says_so_and_is_created_once_it_exists(tmp_path):
    accounts = {"secretName": "accounts", "operatorSecretName": "operator"}
    api: Any = FakeApi(accounts=accounts)
    now_ms = 0
    clock = SystemClock()
    context = Context(
        api=api, resync_ms=1, quiet_ms=1, wall_time=lambda: "", clock=clock, log=NO_LOG,
        secrets=Secrets(api, now_ms=lambda: now_ms, folder=tmp_path),
    )  # fmt: skip
    elector = GroupElector(MemoryPlace().port(), clock=clock, log=NO_LOG)
    work = GroupPass(KEY, context, elector)

    async def condition(type_):
        await work.run()
        (found,) = (one for one in api.status["conditions"] if one["type"] == type_)
        return found["status"], found["reason"], found.get("message", "")

    for type_ in ("Ready", "SpecAccepted", "Progressing"):
        status, reason, text = await condition(type_)
        assert status == ("True" if type_ == "Progressing" else "False")
        assert reason == "SecretMissing"
        assert "mq/accounts does not exist: create it with plain_acl.yml" in text
    assert api.status["phase"] == "Failed"
    assert api.applied == []
    api.secrets["accounts"] = {"plain_acl.yml": "YTo="}
    api.secrets["operator"] = {"accessKey": "YQ=="}
    now_ms += AGE_MAX_MS
    assert (await condition("Ready"))[1] == "SecretIncomplete"
    api.secrets["operator"]["secretKey"] = "YQ=="
    now_ms += AGE_MAX_MS
    assert await work.run() == 0
    assert api.applied[0] == "Secret"  # the key of the group, which pods mount
    assert "StatefulSet" in api.applied
    assert len(elector.keys) == 1
