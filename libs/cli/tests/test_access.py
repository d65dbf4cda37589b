# SPDX-License-Identifier: Apache-2.0
"""Global options, used with a broker that has access control and accepts only TLS."""

import pytest

from cometmq.peers.comet import CometCluster
from cometmq.remoting.transport.certificate import self_signed_pem

ACCOUNTS = """\
accounts:
- accessKey: adminKey1
  secretKey: adminSecret1
  admin: true
- accessKey: userKey1
  secretKey: userSecret1
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - Sealed=PUB
  groupPerms:
  - Denied=DENY
"""
ADMIN = ("--access-key", "adminKey1", "--secret-key", "adminSecret1")
USER = ("--access-key", "userKey1", "--secret-key", "userSecret1")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    conf = {"aclEnable": True, "tls.server.mode": "enforcing", "autoCreateTopicEnable": True}
    with CometCluster(folder, conf) as cluster:
        yield cluster


@pytest.fixture
def say(call, guarded, monkeypatch):
    """Run a command with global options before it."""
    monkeypatch.setenv("NAMESRV_ADDR", guarded.namesrv_addr)

    def say(*arguments):
        return call(*arguments)

    return say


def test_an_account_is_given_before_the_command(say):
    created = say(*ADMIN, "--tls", "topic", "create", "Guarded", "--queues", 1)
    assert (created.status, created.err) == (0, "")
    assert say(*USER, "--tls", "produce", "Guarded", "one").status == 0
    read = say(*USER, "--tls", "consume", "Guarded", "--from", "first", "--max", 1, "--json")
    assert (read.err, [line["body"] for line in read.lines]) == ("", ["one"])
    refused = say(*USER, "--tls", "topic", "create", "Other")
    assert refused.status == 1
    assert "Need admin permission for request code=17" in refused.err


@pytest.mark.parametrize("options", [(), ("--from", "first")])
def test_a_group_that_is_denied_ends_consume(say, options):
    assert say(*ADMIN, "--tls", "topic", "create", "Closed", "--queues", 1).status in {0, 1}
    refused = say(*USER, "--tls", "consume", "Closed", "-g", "Denied", "--timeout", 30, *options)
    refused.assert_refused(1, "access denied: ")


def test_a_refusal_tells_how_to_give_an_account(say, monkeypatch):
    for name in ("ACCESS_KEY", "SECRET_KEY", "CREDENTIALS"):
        monkeypatch.delenv(f"COMETMQ_{name}", raising=False)
    for command in (("topic", "create", "New"), ("produce", "New", "x", "--timeout", 0)):
        refused = say("--tls", *command)
        assert refused.status == 1
        assert "; this command has given no account: use --credentials FILE, or" in refused.err
    refused = say(*USER, "--tls", "topic", "create", "Other")
    assert "; the account is userKey1; an administrator grants it: cometmq upd" in refused.err


@pytest.mark.parametrize("options", [(), ("--from", "first"), ("--follow",)])
@pytest.mark.parametrize("topic", ["Sealed", "SCHEDULE_TOPIC_XXXX"])
def test_a_topic_that_an_account_may_not_read_ends_consume(say, topic, options):
    """The account is refused, whether or not there are messages; waiting would not help."""
    assert say(*ADMIN, "--tls", "produce", "Sealed", "one").status == 0
    refused = say(*USER, "--tls", "consume", topic, *options)
    refused.assert_refused(1, "access denied: ")
    assert refused.err.count("access denied: ") == 1


def test_a_broker_that_denies_access_is_not_said_to_be_silent(say):
    shown = say("--tls", "cluster")
    assert shown.status == 1
    assert "refuses: access denied" in shown.err
    assert "does not answer" not in shown.err


@pytest.mark.parametrize("command", [("show",), ("check",), ("resolve", "--commit", "--yes")])
def test_a_broker_that_never_had_a_transaction_has_none_of_this_id(say, command):
    (row,) = say(*ADMIN, "--tls", "cluster", "--json").json
    place = f"{row['broker']}:17"
    verb, *options = command
    missing = say(*ADMIN, "--tls", "txn", verb, place, *options)
    missing.assert_refused(1, f"{row['broker']} has no half message at the offset 17: ")


def test_mqadmin_s_commands_take_it_too(say):
    config = say(*ADMIN, "--tls", "getAclConfig", "-c", "PeersCluster", "--json")
    assert config.status == 0
    assert "userKey1" in config.out


def test_words_that_are_no_rights_are_named(say):
    """Brokers treat such words as DENY, as RocketMQ's do."""
    account = ("-a", "typoKey1", "-s", "typoSecret1", "-i", "PUBB", "-c", "PeersCluster")
    changed = say(*ADMIN, "--tls", "updateAclConfig", *account)
    line = "cometmq: account typoKey1: defaultTopicPerm: PUBB means DENY; did you mean PUB?\n"
    assert (changed.status, changed.err) == (0, line)
    config = say(*ADMIN, "--tls", "getAclConfig", "-c", "PeersCluster", "--json")
    assert (config.status, config.err) == (0, line)
    removed = say(*ADMIN, "--tls", "deleteAclConfig", "-a", "typoKey1", "-c", "PeersCluster")
    assert (removed.status, removed.err) == (0, "")


def test_an_account_comes_from_a_file_or_the_environment(say, tmp_path, monkeypatch):
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: adminKey1\nsecretKey: adminSecret1\n")
    tls = tmp_path / "tls.properties"
    tls.write_text("tls.client.authServer=false\n")
    command = ("topic", "create", "FromFile", "--queues", 1)

    assert say("--credentials", path, "--tls-config", tls, *command).status == 0
    monkeypatch.setenv("COMETMQ_TLS", "1")
    assert "No accessKey is configured" in say(*command).err
    monkeypatch.setenv("COMETMQ_CREDENTIALS", str(path))
    assert say("topic", "alter", "FromFile", "--queues", 2).status == 0
    refused = say(*USER, "topic", "alter", "FromFile", "--queues", 3)
    assert "Need admin permission" in refused.err  # options override the environment


def test_options_replace_the_environment_s_account_as_a_whole(say, tmp_path, monkeypatch):
    path = tmp_path / "user.yml"
    path.write_text("accessKey: userKey1\nsecretKey: userSecret1\n")
    monkeypatch.setenv("COMETMQ_TLS", "1")
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "adminKey1")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "adminSecret1")
    change = ("topic", "create", "Beaten")
    for words in (("--credentials", path, *change), (*change, "--credentials", path)):
        assert "Need admin permission" in say(*words).err
    missing = "credentials no.yml: No such file"
    say("--credentials", "no.yml", *change).assert_refused(2, missing)
    say(*change, "--credentials", "no.yml").assert_refused(2, missing)
    together = "--access-key and --secret-key belong together"
    say("--access-key", "userKey1", *change).assert_refused(2, together)
    say(*change, "--secret-key", "userSecret1").assert_refused(2, together)
    say(*change, "--security-token", "t").assert_refused(2, "--security-token belongs to --access")
    assert say(USER[0], USER[1], *change, USER[2], USER[3]).err.count("Need admin permission") == 1


def test_two_accounts_or_half_of_one_are_refused(say, tmp_path, monkeypatch):
    say(*USER, "--credentials", "no.yml", "topic", "list").assert_refused(
        2, "--credentials and --access-key are two accounts"
    )
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "userKey1")
    say("topic", "list").assert_refused(
        2, "COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY belong together"
    )
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "userSecret1")
    monkeypatch.setenv("COMETMQ_CREDENTIALS", str(tmp_path / "no.yml"))
    say("topic", "list").assert_refused(
        2, "COMETMQ_CREDENTIALS and COMETMQ_ACCESS_KEY are two accounts"
    )


def test_without_tls_the_broker_is_not_reached(say):
    assert say(*ADMIN, "topic", "create", "Plain").status == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--access-key", "userKey1"), "--access-key and --secret-key belong together"),
        (("--credentials", "no.yml"), "credentials no.yml: No such file or directory"),
        (("--tls-config", "no.properties"), "--tls-config=no.properties: No such file"),
    ],
)
def test_wrong_options_are_named(say, options, line):
    say(*options, "topic", "list").assert_refused(2, line)


def test_a_wrong_ca_is_named_and_not_taken_for_a_missing_name_server(say, tmp_path):
    authority, tls = tmp_path / "ca.pem", tmp_path / "tls.properties"
    authority.write_text(self_signed_pem("another"))
    tls.write_text("tls.test.mode.enable=false\ntls.client.authServer=true\n")
    for line, advice in [
        (
            "",
            "not signed by a CA of the system: set tls.client.trustCertPath to a file with its CA",
        ),
        (
            f"tls.client.trustCertPath={authority}\n",
            f"in tls.client.trustCertPath={authority} in {tls}:3",
        ),
    ]:
        tls.write_text(tls.read_text() + line)
        refused = say("--tls-config", tls, "topic", "list")
        refused.assert_refused(1, "no name server is reached by TLS: no connection to ")
        assert refused.err.endswith(f"{advice}\n")
    authority.unlink()
    refused = say("--tls-config", tls, "topic", "list")
    refused.assert_refused(2, f"tls.client.trustCertPath={authority} in {tls}:3: No such file")


def test_a_command_without_a_client_reads_no_file(say, tmp_path):
    assert say("--credentials", "no.yml", "broker", "--print-settings").status == 0
