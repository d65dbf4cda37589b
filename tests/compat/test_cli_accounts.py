# SPDX-License-Identifier: Apache-2.0
"""`cometmq`'s account commands compared with RocketMQ's mqadmin, on both brokers."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cometmq.peers.cli import CometCli, words_of
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.java import java_home
from cometmq.peers.java import mqadmin as mqadmin_process

pytestmark = pytest.mark.compat

ADMIN_KEY, ADMIN_SECRET = "AdminOfTests", "1234567890"
ACCOUNTS = f"""\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {ADMIN_KEY}
  secretKey: {ADMIN_SECRET}
  admin: true
"""


@dataclass(frozen=True)
class Guarded:
    """A cluster with access control, with both tools logged in as its administrator."""

    cluster: Cluster
    home: Path

    def ours(self, command: str, *options: str) -> str:
        who = ("--access-key", ADMIN_KEY, "--secret-key", ADMIN_SECRET)
        tool = CometCli(self.cluster.namesrv_addr)
        done = tool.run(*who, command, "-b", self.cluster.broker_addrs[0], *options)
        assert done.status == 0, done.errors
        return done.output

    def theirs(self, command: str, *options: str) -> str:
        arguments = (command, "-b", self.cluster.broker_addrs[0], *options)
        return mqadmin_process(arguments, self.cluster.namesrv_addr, home=self.home).stdout

    def accounts(self) -> dict[str, Any]:
        (config,) = json.loads(self.ours("getAclConfig", "--json")).values()
        return {account.pop("accessKey"): account for account in config["plainAccessConfigs"]}


@pytest.fixture(scope="module", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def guarded(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guarded]:
    """A cluster of each implementation; the two read their accounts from different files."""
    folder = tmp_path_factory.mktemp("guarded")
    tools = java_home(folder / "tools")
    credentials = f"accessKey: {ADMIN_KEY}\nsecretKey: {ADMIN_SECRET}\n"
    (tools / "conf" / "tools.yml").write_text(credentials)
    cluster = maker(request.param)(folder, {"aclEnable": True})
    for place in (folder, java_home(folder) / "conf"):
        (place / "plain_acl.yml").write_text(ACCOUNTS)
    with cluster:
        yield Guarded(cluster, tools)


def test_accounts_are_managed_the_same(guarded: Guarded) -> None:
    options = ("-s", "12345678", "-w", "10.1.1.*", "-i", "DENY", "-u", "SUB", "-m", "false")
    perms = ("-t", "topicA=PUB|SUB,topicB=DENY", "-g", "groupA=SUB")
    printed = [
        tool("updateAclConfig", "-a", name, *options, *perms).splitlines()[0]
        for name, tool in (("WriterA", guarded.ours), ("WriterB", guarded.theirs))
    ]
    assert printed[0] == printed[1]
    accounts = guarded.accounts()
    assert accounts["WriterA"] == accounts["WriterB"]
    assert accounts["WriterA"]["topicPerms"] == ["topicA=PUB|SUB", "topicB=DENY"]
    assert words_of(guarded.ours("getAclConfig")) == words_of(guarded.theirs("getAclConfig"))

    printed = [
        tool("deleteAclConfig", "-a", name).replace(name, "NAME").strip()
        for name, tool in (("WriterA", guarded.ours), ("WriterB", guarded.theirs))
    ]
    assert printed[0] == printed[1]
    assert list(guarded.accounts()) == [ADMIN_KEY]


def test_addresses_and_versions_are_managed_the_same(guarded: Guarded) -> None:
    printed = [
        tool("updateGlobalWhiteAddr", "-g", "10.10.103.*,192.168.0.*").strip()
        for tool in (guarded.ours, guarded.theirs)
    ]
    assert printed[0] == printed[1]
    assert "globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]" in guarded.ours("getAclConfig")

    versions = [
        words_of(tool("clusterAclConfigVersion")) for tool in (guarded.ours, guarded.theirs)
    ]
    assert versions[0] == versions[1]
    assert versions[0][0][0] == CLUSTER_NAME


def test_strangers_are_refused(guarded: Guarded) -> None:
    tool = CometCli(guarded.cluster.namesrv_addr)
    options = ("getAclConfig", "-b", guarded.cluster.broker_addrs[0])
    for who in ((), ("--access-key", ADMIN_KEY, "--secret-key", "wrong-secret")):
        done = tool.run(*who, *options)
        assert (done.status, done.output, done.errors.count("\n")) == (1, "", 1)
