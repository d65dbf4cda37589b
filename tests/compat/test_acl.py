# SPDX-License-Identifier: Apache-2.0
"""Access control: accounts have the same rights on both brokers, and get the same answers.

The clients are RocketMQ's, in both releases, its mqadmin with `conf/tools.yml`, and our own.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.broker.acl.files import AclFiles
from cometmq.client import Message, Producer, ProducerOptions, SessionCredentials
from cometmq.peers.clients.javaclient import VERSIONS, JavaClient, MqAdmin
from cometmq.peers.cluster import Cluster
from cometmq.peers.java import JavaCluster, PatientJavaCluster, java_home
from cometmq.peers.processes import wait_until
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.errors import CometError, CommandError
from cometmq.remoting.log import NO_LOG

pytestmark = pytest.mark.compat

RELOAD_TIMEOUT_S: Final = 120.0
ACCOUNTS: Final = """\
accounts:
- accessKey: adminKey1
  secretKey: adminSecret1
  admin: true
- accessKey: userKey1
  secretKey: userSecret1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - AclTopic=PUB|SUB
  - AclReadOnly=SUB
  groupPerms:
  - AclDenied=DENY
"""
BROKER: Final = {"aclEnable": True, "traceTopicEnable": True}
CLIENTS: Final = (
    "admin=adminKey1:adminSecret1,user=userKey1:userSecret1,token=userKey1:userSecret1:some-token,"
    "wrong=userKey1:otherSecret1,unknown=nobodyKey1:nobodySecret1"
)
USER: Final = SessionCredentials("userKey1", "userSecret1")
NEW: Final = SessionCredentials("newKey1", "newSecret1")
HAND: Final = SessionCredentials("handKey1", "handSecret1")
WRONG: Final = SessionCredentials("userKey1", "otherSecret1")


def denied(resource: str, line: int) -> str:
    return refusal(f"No default permission for {resource}", f"checkPerm({MANAGER}:{line})")


def refusal(reason: str, place: str) -> str:
    package = "org.apache.rocketmq.acl"
    return (
        f"{package}.common.AclException: {reason}, {package}.plain.PlainPermissionManager.{place}"
    )


MANAGER: Final = "PlainPermissionManager.java"
NOT_ADMIN: Final = refusal(
    "Need admin permission for request code=17, but accessKey=userKey1 is not",
    f"checkPerm({MANAGER}:580)",
)
WRONG_SIGNATURE: Final = refusal(
    "Check signature failed for accessKey=userKey1", f"validate({MANAGER}:683)"
)
NO_KEY: Final = refusal("No accessKey is configured", f"validate({MANAGER}:663)")
UNKNOWN: Final = refusal("No acl config for nobodyKey1", f"validate({MANAGER}:667)")
NOT_FOUND: Final = "client 208 query message by key finished, but no message."

OUTCOMES: Final = {
    "topic admin AclTopic": "done",
    "topic admin AclReadOnly": "done",
    "topic admin AclClosed": "done",
    "topic user AclOther": f"client 1 {NOT_ADMIN}",
    "send user AclTopic": "SEND_OK",
    "send user AclReadOnly": f"1 {denied('topic:AclReadOnly', 610)}",
    "send user AclClosed": f"1 {denied('topic:AclClosed', 605)}",
    "batch user AclTopic": "SEND_OK",
    "batch user AclReadOnly": f"1 {denied('topic:AclReadOnly', 610)}",
    "traced user AclTopic": "SEND_OK",
    "send token AclTopic": "SEND_OK",
    "send wrong AclTopic": f"1 {WRONG_SIGNATURE}",
    "send unknown AclTopic": f"1 {UNKNOWN}",
    "send nobody AclTopic": f"1 {NO_KEY}",
    "pull user AclTopic AclGroup": "pulled",
    "pull user AclTopic AclDenied": f"1 {denied('group:AclDenied', 610)}",
    "pull user AclClosed AclGroup": f"1 {denied('topic:AclClosed', 605)}",
    "pull wrong AclTopic AclGroup": f"1 {WRONG_SIGNATURE}",
    "consume user AclTopic AclGroup": "received",
    "query user AclTopic": "done",
    "query admin AclTopic": "done",
    "query user AclClosed": NOT_FOUND,  # the client hides the refusal of a query
}
OF_JAVA: Final = OUTCOMES | {
    "batch user AclReadOnly": "SEND_OK",  # a batch is not checked
    "query user AclTopic": NOT_FOUND,  # the broker rejects its own client's signature
    "query admin AclTopic": NOT_FOUND,
}


@pytest.fixture(scope="module", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def guarded(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    with with_accounts(maker(request.param), tmp_path_factory.mktemp("acl")) as cluster:
        yield cluster


def with_accounts(maker: type[Cluster], directory: Path) -> Cluster:
    cluster = maker(directory, BROKER)
    path = accounts_file(cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ACCOUNTS)
    return cluster


@pytest.fixture(autouse=True)
def _same_accounts_for_all(guarded: Cluster) -> Iterator[None]:
    yield
    if accounts_file(guarded).read_text() != ACCOUNTS:
        accounts_file(guarded).write_text(ACCOUNTS)
        wait_for(guarded, HAND, "AclTopic", "handKey1")
        wait_for(guarded, NEW, "AclTopic", "newKey1")


def accounts_file(cluster: Cluster) -> Path:
    """Return the path of the accounts: under Java's home, or beside our broker's configuration."""
    home = "home/conf/" if isinstance(cluster, JavaCluster) else ""
    return cluster.directory / f"{home}plain_acl.yml"


def tools(folder: Path, access_key: str, secret_key: str) -> dict[str, str]:
    home = java_home(folder)
    text = f"accessKey: {access_key}\nsecretKey: {secret_key}\n"
    (home / "conf" / "tools.yml").write_text(text)
    return {"rocketmq.home.dir": str(home)}


@pytest.fixture
def administrator(guarded: Cluster, tmp_path: Path) -> Iterator[MqAdmin]:
    with MqAdmin(
        guarded.namesrv_addr, properties=tools(tmp_path, "adminKey1", "adminSecret1")
    ) as session:
        yield session


@pytest.mark.parametrize("version", VERSIONS)
def test_accounts_are_limited_to_their_permissions(
    guarded: Cluster, version: str, tmp_path: Path
) -> None:
    client = JavaClient(tmp_path, version)
    events = client.start(
        "acl",
        namesrv=guarded.namesrv_addr,
        broker=guarded.broker_addrs[0],
        broker_name=guarded.broker_names[0],
        accounts=CLIENTS,
        steps=";".join(OUTCOMES),
    ).finish()

    outcomes = {event["step"]: event["outcome"] for event in events}
    assert outcomes == (OF_JAVA if isinstance(guarded, JavaCluster) else OUTCOMES)


def test_traces_of_an_account_without_a_right_to_them_arrive(
    guarded: Cluster, administrator: MqAdmin, tmp_path: Path
) -> None:
    administrator.run("updateTopic", "-b", guarded.broker_addrs[0], "-t", "AclTopic")

    def are_there() -> bool:
        answer = administrator.run("topicStatus", "-t", "RMQ_SYS_TRACE_TOPIC")
        return any(int(row[3]) > 0 for row in answer.rows() if len(row) > 3)

    steps = {"accounts": CLIENTS, "steps": "traced user AclTopic", "stay_s": 300}
    with JavaClient(tmp_path).start("acl", namesrv=guarded.namesrv_addr, **steps):
        wait_until(are_there, RELOAD_TIMEOUT_S, "traces")


def test_administrators_change_accounts(
    guarded: Cluster, administrator: MqAdmin, tmp_path: Path
) -> None:
    broker = ("-b", guarded.broker_addrs[0])
    keys = ("-a", "newKey1", "-s", "newSecret1")
    administrator.run("updateTopic", *broker, "-t", "AclNew")
    assert "newKey1" in sent(guarded, NEW, "AclNew")

    created = administrator.run("updateAclConfig", *broker, *keys, "-t", "AclNew=PUB")
    assert f"to {guarded.broker_addrs[0]} success" in created.output
    wait_for(guarded, NEW, "AclNew", "SEND_OK")
    assert set(read_by_us(accounts_file(guarded))) == {"adminKey1", "userKey1", "newKey1"}
    config = administrator.run("getAccessConfigSubCommand", *broker)
    assert {"newKey1", "userKey1", "adminKey1"} <= set(re.findall(r"\w+Key1", config.output))
    version = administrator.run("clusterAclConfigVersion", *broker)
    assert str(accounts_file(guarded)) in version.output

    administrator.run("updateAclConfig", *broker, *keys, "-t", "AclNew=SUB")
    wait_for(guarded, NEW, "AclNew", "No default permission for topic:AclNew")
    deleted = administrator.run("deleteAccessConfig", *broker, "-a", "newKey1")
    assert f"from {guarded.broker_addrs[0]} success" in deleted.output
    wait_for(guarded, NEW, "AclNew", "No acl config for newKey1")


def test_administrators_change_white_addresses(guarded: Cluster, tmp_path: Path) -> None:
    """Runs on its own cluster, because RocketMQ never removes a white address."""
    properties = tools(tmp_path, "adminKey1", "adminSecret1")
    with (
        with_accounts(type(guarded), tmp_path / "white") as cluster,
        MqAdmin(cluster.namesrv_addr, properties=properties) as administrator,
    ):
        broker = ("-b", cluster.broker_addrs[0])
        administrator.run("updateTopic", *broker, "-t", "AclWhite")
        assert "No accessKey is configured" in sent(cluster, None, "AclWhite")
        administrator.run("updateGlobalWhiteAddr", *broker, "-g", "127.0.0.1")
        wait_for(cluster, None, "AclWhite", "SEND_OK")


def test_others_change_nothing(guarded: Cluster, tmp_path: Path) -> None:
    """In RocketMQ, every account may change accounts; CometMQ deviates deliberately."""
    properties = tools(tmp_path, "userKey1", "userSecret1")
    with MqAdmin(guarded.namesrv_addr, properties=properties) as user:
        answer = user.run(
            "updateAclConfig", "-b", guarded.broker_addrs[0], "-a", "userKey1",
            "-s", "userSecret1", "-m", "true",
        )  # fmt: skip
    is_java = isinstance(guarded, JavaCluster)
    assert ("success" in answer.output) is is_java
    assert ("Need admin permission for request code=50" in answer.errors) is not is_java


def test_files_changed_by_hand_are_used_and_broken_ones_are_not(guarded: Cluster) -> None:
    path = accounts_file(guarded)
    entry = "- accessKey: handKey1\n  secretKey: handSecret1\n  admin: true\n"
    path.write_text(ACCOUNTS + entry)
    wait_for(guarded, HAND, "AclByHand", "SEND_OK")
    if isinstance(guarded, JavaCluster):
        return  # its reaction to a broken file depends on the fault
    path.write_text(ACCOUNTS + "- accessKey: short\n")
    wait_until(
        lambda: "accounts.unreadable" in guarded.brokers[guarded.broker_names[0]].log(),
        RELOAD_TIMEOUT_S, "complaint",
    )  # fmt: skip
    assert sent(guarded, HAND, "AclByHand") == "SEND_OK"


@pytest.mark.slow
def test_java_reads_a_file_that_we_wrote(tmp_path: Path) -> None:
    cluster = with_accounts(PatientJavaCluster, tmp_path)
    files = AclFiles(accounts_file(cluster), clock_ms=lambda: 1_600_000_000_000, log=NO_LOG)
    own = AclAccount(
        "newKey1", secret_key="newSecret1", topic_perms=["AclWritten=PUB"], admin=False
    )
    files.put_account(own)
    files.set_white_addresses(["10.0.0.1-50", "10.0.1.*"], None)
    with cluster:
        assert sent(cluster, NEW, "AclWritten") == "SEND_OK"
        assert denied("topic:AclOther", 605) in sent(cluster, NEW, "AclOther")
        assert NO_KEY in sent(cluster, None, "AclWritten")


def read_by_us(path: Path) -> list[str]:
    return list(AclFiles(path, clock_ms=lambda: 0, log=NO_LOG).load().by_key)


def test_our_client_is_judged_alike(guarded: Cluster, administrator: MqAdmin) -> None:
    for topic in ("AclTopic", "AclReadOnly"):
        administrator.run("updateTopic", "-b", guarded.broker_addrs[0], "-t", topic)
    assert sent(guarded, USER, "AclTopic") == "SEND_OK"
    assert denied("topic:AclReadOnly", 610) in sent(guarded, USER, "AclReadOnly")
    assert WRONG_SIGNATURE in sent(guarded, WRONG, "AclTopic")
    assert NO_KEY in sent(guarded, None, "AclTopic")


def wait_for(
    cluster: Cluster, credentials: SessionCredentials | None, topic: str, outcome: str
) -> None:
    """Wait until a send has this result: changed files take effect within a few seconds."""
    wait_until(lambda: outcome in sent(cluster, credentials, topic), RELOAD_TIMEOUT_S, outcome)


def sent(cluster: Cluster, credentials: SessionCredentials | None, topic: str) -> str:
    async def send() -> str:
        options: dict[str, Any] = {"credentials": credentials, "retry_times": 0}
        async with Producer(
            "OwnAcl", cluster.namesrv_addr, options=ProducerOptions(**options)
        ) as producer:
            return (await producer.send(Message(topic, b"own"))).status.name

    try:
        return asyncio.run(send())
    except CommandError as refusal:
        return refusal.remark  # the server's remark, without the text that our client adds
    except CometError as error:
        return str(error)
