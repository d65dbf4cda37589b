# SPDX-License-Identifier: Apache-2.0
"""The operator elects, drains and declares on real brokers that enforce TLS and accounts."""

import asyncio
import base64
from contextlib import AsyncExitStack
from unittest.mock import Mock

import pytest

from cometmq.broker.settings import BrokerSettings
from cometmq.client import Message, MessageQueue, Producer
from cometmq.client.admin import AdminClient
from cometmq.client.errors import NoRoute
from cometmq.client.settings import ClientOptions, ProducerOptions
from cometmq.client.testing.cluster import eventually
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.operator.broker_groups.drain import Drain
from cometmq.operator.broker_groups.group_elector import (
    PLAIN,
    Addresses,
    GroupElector,
    MemberAccess,
)
from cometmq.operator.broker_groups.key_rotation import StoredKeys
from cometmq.operator.broker_groups.key_secret import KeySecret
from cometmq.operator.broker_groups.pod import ACCOUNTS, GROUP_KEY, TLS
from cometmq.operator.broker_groups.render import broker_conf
from cometmq.operator.secrets import Secrets
from cometmq.operator.topics_and_groups.declared_pass import DeclaredPass
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime import properties
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.broker.broker_groups import FAST, KillableApp
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.ha.memory import MemoryPlace
from cometmq.testing.operator.api import MemoryApi, context_of
from cometmq.testing.operator.states import group

NAME = "brokers.test"
PEM = self_signed_pem(NAME)
CERT = {"tls.crt": PEM, "tls.key": PEM, "ca.crt": PEM}
ADMIN = {"accessKey": "operator-1", "secretKey": "operator-secret"}
STRANGER = {"accessKey": "operator-1", "secretKey": "another-secret"}
ACL = """
accounts:
- {accessKey: operator-1, secretKey: operator-secret, admin: true}
"""
OLD, NEW = "o" * 44, "n" * 44
SECURED = {
    "tls": {
        "secretName": "cert", "mode": "Enforcing", "clientAuth": "Require", "controlName": NAME,
    },
    "accounts": {"secretName": "accounts", "operatorSecretName": "operator"},
}  # fmt: skip


class World:
    """A name server and a broker with the settings that the operator renders."""

    def __init__(self, folder, stack, api, secrets):
        self.folder, self.stack, self.api, self.secrets = folder, stack, api, secrets
        self.main = free_broker_port()
        self.control = free_port()
        self.place = MemoryPlace()
        self.files, self.versions = folder / "mounted", 0

    def mount(self, **values):
        """Write the files of Secrets as a kubelet does: links lead to a folder that is replaced."""
        self.files.mkdir(exist_ok=True)
        self.versions += 1
        folder = self.files / f"..{self.versions}"
        folder.mkdir()
        for key, text in values.items():
            (folder / key).write_text(text, encoding="ascii")
            if not (self.files / key).is_symlink():
                (self.files / key).symlink_to(f"..data/{key}")
        link = self.files / "..data_tmp"
        link.symlink_to(folder.name)
        link.rename(self.files / "..data")

    async def start(self):
        self.mount(**CERT, **{"plain_acl.yml": ACL, "group.key": f"{OLD}\n"})
        conf = broker_conf(group(**SECURED, brokerName="orders"))
        for folder in (TLS, ACCOUNTS, GROUP_KEY):
            conf = conf.replace(folder, str(self.files))
        rendered = properties.parse(conf)
        security = {
            key: value
            for key, value in rendered.items()
            if key.startswith(("tls.", "acl", "groupKey"))
        }
        server = {key: value for key, value in security.items() if key.startswith("tls.server.")}
        namesrv = NamesrvApp(
            load(NamesrvSettings, prefix="COMETMQ_TEST", env={}, cli={
                **server, "listenPort": "0", "bindAddress": HOST,
                "configStorePath": str(self.folder / "kv.json"),
            }),
            log=NO_LOG, clock=SystemClock(),
        )  # fmt: skip
        await namesrv.start()
        self.stack.push_async_callback(namesrv.stop)
        self.namesrv = namesrv.addresses[0]
        self.broker = KillableApp(
            load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli={
                **FAST, **security,
                "brokerName": "orders", "brokerId": "0", "brokerIP1": HOST, "bindAddress": HOST,
                "listenPort": str(self.main), "controlPort": str(self.control),
                "controlBindAddress": HOST, "namesrvAddr": self.namesrv,
                "registerNameServerPeriod": "10000",
                "storePathRootDir": str(self.folder / "store"),
                "groupRecord": "file:/not-used", "groupMembers": f"0={HOST}:{self.main}",
            }),
            log=RecordingLog(), clock=SystemClock(), record=self.place.port(),
        )  # fmt: skip
        await self.broker.start()
        self.stack.push_async_callback(self.broker.kill)

    def elector(self):
        addresses = Addresses(
            control=lambda _group, _one: f"{HOST}:{self.control}",
            main=lambda _group, _one: f"{HOST}:{self.main}",
        )
        elector = GroupElector(
            self.place.port(), clock=SystemClock(), log=NO_LOG, addresses=addresses
        )
        self.stack.push_async_callback(elector.close)
        return elector

    async def link(self):
        return MemberAccess(await self.secrets.tls("mq", "cert"), NAME, has_key=True)

    async def elected(self):
        """Return an elector that has made the broker the master."""
        elector, one = self.elector(), group(replicas=1, **SECURED)
        elector.keys = (OLD.encode(),)
        await elector.look_after(one, range(1), frozenset(), {0: await self.link()})
        await eventually(lambda: any(it.role.value == "master" for it in elector.election.statuses))
        return elector, one


def drained(elector):
    return Drain(context_of(Mock()), elector)


def encoded(values):
    return {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}


@pytest.fixture
async def world(tmp_path):
    api = MemoryApi()
    values = {"cert": CERT, "operator": ADMIN, "stranger": STRANGER, "trust": {"ca.crt": PEM}}
    for name, data in values.items():
        api.put("Secret", name, data=encoded(data))
    secrets = Secrets(api, now_ms=lambda: 0, folder=tmp_path / "secrets")
    async with AsyncExitStack() as stack:
        found = World(tmp_path, stack, api, secrets)
        await found.start()
        yield found


async def test_a_group_with_tls_and_accounts_gets_a_master_and_a_backlog(world):
    elector, one = await world.elected()
    account = await world.secrets.account("mq", "operator")
    found = await drained(elector).backlog(one, 0, account)
    assert found.total == 0
    await drained(elector).refuse_sends(one, range(1))
    assert world.broker.broker.settings.broker_permission == 4


async def test_messages_in_queues_without_producers_belong_to_the_backlog(world):
    """They are lost with the volumes; consumers still read one of the queues."""
    elector, one = await world.elected()
    account = await world.secrets.account("mq", "operator")
    tls = (await world.link()).tls
    options = ProducerOptions(credentials=account, tls=tls)
    admin_options = ClientOptions(credentials=account, tls=tls)
    async with AdminClient(world.namesrv, options=admin_options, log=NO_LOG) as admin:
        broker = admin.broker(f"{HOST}:{world.main}")
        await broker.create_topic(
            TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3)
        )
        async with Producer("P", world.namesrv, options=options) as producer:
            for queue_id in range(3):
                queue = MessageQueue("T", "orders", queue_id)
                await eventually(lambda: sent(producer, queue))  # noqa: B023
        await broker.create_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=1)
        )
        await broker.create_group(SubscriptionGroupConfig(group_name="G"))
        await broker.commit_offset("G", "T", 0, 1)

        async def counted():
            return await drained(elector).backlog(one, 0, account)

        found = await eventually(counted)
        assert found.by_group == {"G": 2}
        assert found.end > 0
        await broker.commit_offset("G", "T", 1, 1)
        await broker.commit_offset("G", "T", 2, 1)
        found = await drained(elector).backlog(one, 0, account)
        assert found.total == 0


async def sent(producer, queue):
    """Send a message; return False if the master has not registered yet."""
    try:
        await producer.send(Message("T", b"m"), queue=queue, timeout_ms=30_000)
    except NoRoute:
        return False
    return True


async def test_a_backlog_is_unknown_without_a_valid_account(world):
    elector, one = await world.elected()
    assert await drained(elector).backlog(one, 0, None) is None
    outsider = await world.secrets.account("mq", "stranger")
    assert await drained(elector).backlog(one, 0, outsider) is None


async def test_an_unchanged_link_keeps_the_elector_and_a_renewed_one_replaces_it(world):
    elector, one = await world.elected()
    before = elector.elector
    await elector.look_after(one, range(1), frozenset(), {0: await world.link()})
    assert elector.elector is before
    await elector.look_after(one, range(1), frozenset(), {0: PLAIN})
    assert elector.elector is not before
    assert await drained(elector).backlog(one, 0, None) is None


async def test_changed_secrets_take_effect_without_a_restart(world):
    elector, one = await world.elected()
    renewed = self_signed_pem(NAME)
    cert = {"tls.crt": renewed, "tls.key": renewed, "ca.crt": renewed}
    accounts = ACL.replace("operator-secret", "another-secret")
    world.mount(**cert, **{"plain_acl.yml": accounts, "group.key": f"{OLD}\n"})
    world.api.put("Secret", "cert", data=encoded(cert))
    world.secrets = Secrets(world.api, now_ms=lambda: 0, folder=world.folder / "renewed")
    await elector.look_after(one, range(1), frozenset(), {0: await world.link()})
    account = await world.secrets.account("mq", "stranger")

    async def counted():
        return await drained(elector).backlog(one, 0, account) is not None

    await eventually(counted)
    outsider = await world.secrets.account("mq", "operator")
    assert await drained(elector).backlog(one, 0, outsider) is None


async def test_a_key_is_replaced_without_a_restart_and_without_losing_the_broker(world):
    elector, one = await world.elected()
    api = KeyApi(world)
    secret = KeySecret(api, log=NO_LOG, make=NEW.encode)
    steps = []

    async def is_replaced():
        elector.keys = secret.keys
        await secret.keep(one, elector.election.reported_keys, (0,))
        steps.append(secret.keys)
        return secret.keys == (NEW.encode(),)

    secret._stored = StoredKeys((OLD.encode(),))
    assert await secret.rotate(one) == ""
    before = elector.elector
    await eventually(is_replaced)
    keys = OLD.encode(), NEW.encode()
    assert list(dict.fromkeys(steps)) == [keys, keys[::-1], keys[1:]]
    await drained(elector).refuse_sends(one, range(1))
    assert elector.elector is before
    assert any(it.role.value == "master" for it in elector.election.statuses)


class KeyApi(MemoryApi):
    """Mounts the Secret of the key, as a kubelet does."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    async def apply(self, body, *, part=""):
        text = base64.b64decode(body["data"]["group.key"]).decode()
        self.world.mount(**CERT, **{"plain_acl.yml": ACL, "group.key": text})
        return await super().apply(body, part=part)


async def reconciled(world, **spec):
    """Run a pass over a Topic; return reason and text of its condition."""
    world.api.put("Topic", "orders-paid", spec={"nameServers": [world.namesrv], **spec})
    context = context_of(world.api, secrets=world.secrets)
    rivals = Mock(turns=asyncio.Semaphore(1), competing=lambda _claim: [])
    work = DeclaredPass(("Topic", "mq", "orders-paid"), context, rivals)
    await work.run()
    assert work.status is not None
    (ready,) = work.status.conditions
    return ready.reason, ready.message


WAYS_IN = {"tls": {"secretName": "cert"}, "accountSecretName": "operator"}


async def test_a_topic_is_declared_with_tls_and_an_account(world):
    await world.elected()

    async def declared():
        return (await reconciled(world, **WAYS_IN))[0] == "AsSpecified"

    await eventually(declared)  # until the master has registered
    assert "orders-paid" in world.broker.broker.tables.topics.table


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"tls": {"secretName": "none"}}, "SecretMissing", "mq/none does not exist: create it"),
        ({"accountSecretName": "trust"}, "SecretIncomplete", "lacks accessKey, secretKey"),
        ({"tls": {"secretName": "trust"}}, "BrokersUnreachable", ""),
        ({"accountSecretName": "stranger"}, "BrokersUnreachable", "signature"),
    ],
    ids=["no Secret", "no account", "no client certificate", "wrong account"],
)
async def test_a_topic_without_its_ways_in_says_what_to_do(world, change, reason, words):
    await world.elected()

    async def declared():
        return (await reconciled(world, **WAYS_IN))[0] == "AsSpecified"

    await eventually(declared)
    found, text = await reconciled(world, **{**WAYS_IN, **change})
    assert found == reason
    assert words in text
