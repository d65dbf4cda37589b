# SPDX-License-Identifier: Apache-2.0

import base64
from unittest.mock import Mock

from structlog.testing import CapturingLogger

from cometmq.client.testing.cluster import eventually
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.broker_groups.group import CONTROL_NAME, TLS_SECRET
from cometmq.operator.broker_groups.group_elector import PLAIN, GroupElector, MemberAccess
from cometmq.operator.broker_groups.group_pass import GroupPass, Groups
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.secrets import AGE_MAX_MS, Secrets
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.clock import SystemClock
from cometmq.testing.ha.memory import MemoryPlace
from cometmq.testing.operator.api import MemoryApi, context_of
from cometmq.testing.operator.states import group

KEY = (KIND, "mq", "orders")


async def test_an_invalid_spec_fails_its_pass_and_the_next_one_reads_it_again():
    """The API server rejects this spec unless it has a different version of the CRD."""
    api = MemoryApi()
    api.put_group(replicas="three")
    log, figures = CapturingLogger(), OperatorFigures()
    context = context_of(api, log=log)
    groups = Groups(context, figures, record_of=lambda *_: Mock())
    groups.wake(KEY)
    await eventually(lambda: figures.passes["failed"])
    assert [(call.method_name, call.args) for call in log.calls] == [
        ("warning", ("object.unattended",))
    ]
    assert "replicas" in log.calls[0].kwargs["error"]
    api.objects.clear()
    groups.wake(KEY)
    await eventually(lambda: not len(groups))
    await groups.close()
    assert figures.passes == {"failed": 1, "done": 1}


async def test_a_member_is_reached_as_before_while_its_secret_is_gone(tmp_path):
    api = MemoryApi()
    pem = base64.b64encode(self_signed_pem("brokers.test").encode()).decode()
    api.put("Secret", "cert", data={"ca.crt": pem})
    now_ms = 0
    secrets = Secrets(api, now_ms=lambda: now_ms, folder=tmp_path)
    context = context_of(api, secrets=secrets)
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
    api.objects.clear()
    now_ms += AGE_MAX_MS
    assert await work._link(group(), live, 1) == link


async def test_a_group_whose_secret_is_missing_says_so_and_is_created_once_it_exists(tmp_path):
    accounts = {"secretName": "accounts", "operatorSecretName": "operator"}
    api = MemoryApi()
    api.put_group(accounts=accounts)
    now_ms = 0
    clock = SystemClock()
    secrets = Secrets(api, now_ms=lambda: now_ms, folder=tmp_path)
    context = context_of(api, secrets=secrets)
    elector = GroupElector(MemoryPlace().port(), clock=clock, log=NO_LOG)
    work = GroupPass(KEY, context, elector)

    def stored():
        return api.objects[KEY]["status"]

    async def condition(type_):
        await work.run()
        (found,) = (one for one in stored()["conditions"] if one["type"] == type_)
        return found["status"], found["reason"], found.get("message", "")

    for type_ in ("Ready", "SpecAccepted", "Progressing"):
        status, reason, text = await condition(type_)
        assert status == ("True" if type_ == "Progressing" else "False")
        assert reason == "SecretMissing"
        assert "mq/accounts does not exist: create it with plain_acl.yml" in text
    assert stored()["phase"] == "Failed"
    assert {kind for kind, _ in api.made("apply")} == {KIND}  # its status
    api.put("Secret", "accounts", data={"plain_acl.yml": "YTo="})
    api.put("Secret", "operator", data={"accessKey": "YQ=="})
    now_ms += AGE_MAX_MS
    assert (await condition("Ready"))[1] == "SecretIncomplete"
    api.put("Secret", "operator", data={"accessKey": "YQ==", "secretKey": "YQ=="})
    now_ms += AGE_MAX_MS
    api.calls.clear()
    assert await work.run() == 0
    applied = [kind for kind, _ in api.made("apply")]
    assert applied[0] == "Secret"  # the key of the group, which pods mount
    assert "StatefulSet" in applied
    assert len(elector.keys) == 1
