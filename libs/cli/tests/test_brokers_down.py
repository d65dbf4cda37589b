# SPDX-License-Identifier: Apache-2.0
"""Commands name brokers that are down or hang, and print the results of the others."""

import asyncio
import json
import signal
import subprocess
from typing import Any

import pytest

from cometmq.client.admin import AdminClient, messages
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until
from cometmq.remoting.errors import AccessDenied, ConnectFailed, RequestTimeout, ServerError
from cometmq.remoting.transport.client import RemotingClient

NAMES = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def cluster(running_cluster, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        for name in NAMES:
            cluster.start_broker(name)
        yield cluster


@pytest.fixture
def run(call, cluster):
    return lambda *args: call(*args, "-n", cluster.namesrv)


@pytest.fixture
def hung(cluster, frozen):
    """Make broker-b hang."""
    with frozen(cluster, "broker-b"):
        yield f"broker broker-b ({cluster.addresses['broker-b']}) hangs: "


@pytest.fixture(scope="module", autouse=True)
def orders(cluster):
    """Create a topic on both brokers, with a group that lags behind."""

    def say(*args):
        command = [str(PROGRAM), *args, "-n", cluster.namesrv]
        return subprocess.run(command, check=True, capture_output=True, timeout=60)

    say("topic", "create", "Orders", "--queues", "2")
    say("group", "create", "payers")
    say("produce", "Orders", *map(str, range(8)))
    say("consume", "Orders", "-g", "payers", "--from", "first", "--max", "1", "--timeout", "60")


def test_the_queues_of_a_topic_on_two_brokers_are_named_by_broker(run):
    created = run("topic", "create", "Both", "--queues", 2)
    assert (created.status, "queues      4" in created.out) == (0, True)
    assert run("topic", "create", "BothToo", "--queues", 2, "--json").json["queues"] == 4


def test_topics_are_listed_with_their_queues_at_each_broker(run):
    run("topic", "create", "Equal", "--queues", 3)
    run("topic", "create", "Unequal", "--queues", 3, "-b", "broker-a")
    run("topic", "create", "Unequal", "--queues", 5, "-b", "broker-b")
    lines = [line.split() for line in run("topic", "list").out.splitlines()]
    shown = {line[0]: " ".join(line[3:-1]) for line in lines}
    assert (shown["Equal"], shown["Unequal"]) == ("3 at each 3 at each", "3+5 3+5")
    rows = {row["topic"]: row["read_queues"] for row in run("topic", "list", "--json").json}
    assert (rows["Equal"], rows["Unequal"]) == (6, 8)


def test_existing_topics_are_reported_by_broker(run):
    assert run("topic", "create", "Partial", "--queues", 3, "-b", "broker-a").status == 0
    run("topic", "create", "Partial").assert_refused(
        1,
        "the topic Partial exists at broker-a (3 read and 3 write queues, rw); to change it, use"
        " cometmq topic alter Partial; to create it at the other brokers, use cometmq topic create"
        " Partial --broker broker-b",
    )
    assert run("topic", "create", "Partial", "--queues", 2, "-b", "broker-b").status == 0
    run("topic", "alter", "Partial", "--queues", 2).assert_refused(
        1, "Consumers lose broker-a:2 (0 messages)"
    )
    rows = run("topic", "alter", "Partial", "--queues", 5, "-b", "broker-b", "--json").json
    assert [(row["broker"], row["read_queues"]) for row in rows] == [("broker-b", 5)]
    rows = run("topic", "alter", "Partial", "--perm", "r", "--yes", "--json").json
    assert [(row["read_queues"], row["permission"]) for row in rows] == [(3, "r"), (5, "r")]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("cluster",), "broker-a"),
        (("topic", "list"), "Orders"),
        (("topic", "describe", "Orders"), "broker-a"),
        (("group", "list"), "payers"),
        (("group", "describe", "payers"), "payers"),
        (("lag",), "payers"),
        (("lag", "payers"), "broker-a"),
        (("txn", "list"), "Transaction"),
        (("clusterList",), "broker-a"),
    ],
)
def test_a_hung_broker_is_named_and_the_other_one_shown(run, hung, cluster, args, part):
    line = hung if args != ("clusterList",) else cluster.addresses["broker-b"]
    assert part in run(*args).assert_named(line)


def test_lag_names_a_broker_that_is_left_out_half_way(run, cluster, monkeypatch, tmp_path):
    """The broker answers the first requests, then refuses a later one or leaves it unanswered."""

    def fails_at_b(method, error):
        for name in (method, "overview"):  # the list of all groups begins with that
            monkeypatch.setattr(BrokerAdmin, name, failing(getattr(BrokerAdmin, name), error))

    def failing(original, error):
        async def asked(self, *args):
            if self.name == "broker-b":
                raise error
            return await original(self, *args)

        return asked

    place = f"broker broker-b ({cluster.addresses['broker-b']})"
    commands: list[tuple[Any, ...]] = [("lag",), ("lag", "payers")]
    commands.append(("lag", "--report", tmp_path / "page.html"))
    fails_at_b("min_offset", RequestTimeout("no answer"))
    for words in commands[:2]:
        run(*words).assert_named(f"{place} hangs: no answer; ")
    run(*commands[2]).assert_named("broker broker-b answers only in part: ")
    rows = json.loads(run("lag", "--json").assert_named(f"{place} hangs"))
    assert [it["queues"] > 0 for it in rows if it["group"] == "payers"] == [True]
    fails_at_b("consume_stats", ServerError("out of order"))
    for each in commands:
        run(*each).assert_named(
            f"{place} refuses: the server failed or refused the request: out of"
        )
    fails_at_b("consume_stats", AccessDenied("denied"))
    for other in (commands[0], commands[2]):
        run(*other).assert_named("the figures of the group payers are missing: ")
    refused = run("lag", "payers")
    assert (refused.status, refused.out, "denied" in refused.err) == (1, "", True)


def test_changes_name_the_broker_that_hangs_and_change_nothing(run, hung, cluster):
    run("topic", "create", "Refunds").assert_refused(1, f"nothing was changed: {hung}")
    assert "Refunds" not in run("topic", "list").out


READING = [
    ("definitions", "export"),
    ("definitions", "export", "{folder}/definitions.json"),
    ("backup", "{folder}/backup", "Orders", "--groups"),
    ("group", "seek", "payers", "--to-file", "{folder}/offsets.txt"),
]
"""Commands that need the answers of all brokers, and write only files."""


@pytest.mark.parametrize("words", READING)
def test_commands_that_only_read_do_not_speak_of_changes(run, hung, tmp_path, words):
    done = run(*(word.format(folder=tmp_path) for word in words))
    assert done.assert_named(hung) == ""
    assert "nothing was changed" not in done.err
    assert not [*tmp_path.glob("*.*")]


CREATE_TOPIC = "do it there, too: cometmq topic create {} --broker broker-b"
CREATE_GROUP = "alter it: cometmq group alter {} --retries 16"
HALF_DONE = {
    "create_topic": (("topic", "create", "{}"), "create the topic {}", CREATE_TOPIC),
    "create_group": (("group", "create", "{}"), "create the group {}", CREATE_GROUP),
    "delete_topic": (("topic", "delete", "{}", "-y"), "delete the topic {}", "repeat the command"),
    "delete_group": (("group", "delete", "{}", "-y"), "delete the group {}", "repeat the command"),
}


@pytest.mark.parametrize("method", HALF_DONE)
@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (RequestTimeout("no answer"), "perhaps done", "hangs: no answer; look at its log"),
        (ConnectFailed("no"), "not done", "is down: no; start it, or look at its log"),
        (ServerError("it does not"), "not done", "refuses: the server failed or refused"),
    ],
)
def test_a_change_that_fails_halfway_says_what_is_done_and_what_to_do(
    run, monkeypatch, method, error, outcome, reason
):
    original = getattr(BrokerAdmin, method)

    async def failing(self, *args, **options):
        if self.name == "broker-b":
            raise error
        await original(self, *args, **options)

    name = f"Half{type(error).__name__}{method}"
    if method.startswith("delete"):
        kind = method.removeprefix("delete_")
        assert run(kind, "create", name).status == 0
    monkeypatch.setattr(BrokerAdmin, method, failing)
    args, what, advice = HALF_DONE[method]
    result = run(*(arg.format(name) for arg in args))
    begin = f"{what.format(name)}: done at broker-a, {outcome} at broker-b: broker broker-b ("
    result.assert_refused(1, begin)
    text = result.err.splitlines()[0]
    assert f") {reason}" in text
    assert text.endswith(f"; then {advice.format(name)}")


def test_a_topic_is_not_deleted_while_a_broker_hangs(run, hung):
    run("topic", "delete", "Orders", "--yes").assert_refused(1, f"nothing was changed: {hung}")
    assert "broker-a" in run("topic", "describe", "Orders").out


def committed(run):
    rows = run("lag", "payers", "--json").json["queues"]
    return {(row["topic"], row["broker"], row["queue"]): row["committed"] for row in rows}


@pytest.mark.parametrize(
    "command",
    [
        ("delete", "payers", "--topics"),
        ("reset", "payers", "Orders", "--to", "last"),
        ("reset", "payers", "Orders", "--queue", "broker-a:0", "--offset", "0"),
        ("clone", "payers", "payers-too", "Orders"),
    ],
)
def test_a_group_is_not_changed_while_a_broker_hangs(cluster, run, frozen, command):
    run("group", "create", "payers-too")
    before = committed(run)
    with frozen(cluster, "broker-b"):
        refused = run("group", *command)  # without --yes: it fails before the question
    place = f"broker broker-b ({cluster.addresses['broker-b']})"
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith(f"cometmq: nothing was changed: {place} hangs: "), refused.err
    assert committed(run) == before
    assert run("group", "describe", "payers-too").status == 0


@pytest.mark.parametrize("options", [(), ("-g", "half-readers")], ids=["observer", "group"])
def test_consume_names_the_brokers_whose_queues_it_may_not_read(run, options):
    run("topic", "create", "HalfRead", "--queues", 1)
    assert run("topic", "alter", "HalfRead", "--perm", "w", "-b", "broker-b", "--yes").status == 0
    args = ("consume", "HalfRead", "--from", "first", "--timeout", 1, *options)
    note = "HalfRead: consumers may not read its queues at broker-b, and get none of their messages"
    assert note in run(*args).err
    assert run("topic", "alter", "HalfRead", "--perm", "rw", "-b", "broker-b").status == 0
    assert "consumers may not read" not in run(*args).err


def test_a_topic_that_one_broker_of_its_route_lacks_is_shown_with_advice(run, cluster, call):
    """Name servers keep a broker in a topic's route after the broker has deleted the topic."""
    run("topic", "create", "Torn", "--queues", 2)
    run("produce", "Torn", *map(str, range(8)))

    async def delete_at_b():
        async with AdminClient(cluster.namesrv) as admin:
            await admin.broker(cluster.addresses["broker-b"]).delete_topic("Torn")

    asyncio.run(delete_at_b())
    place = f"broker broker-b ({cluster.addresses['broker-b']})"
    line = f"{place} does not have the topic Torn, although the name server lists it there"
    described = run("topic", "describe", "Torn")
    assert "4 messages" in described.assert_named(line)
    assert "cometmq topic delete Torn;" in described.err
    assert described.err.endswith("cometmq topic create Torn -b broker-b\n")
    shown = run("consume", "Torn", "--from", "first", "--timeout", 3)
    assert len(shown.out.splitlines()) == 4
    assert "broker-b" in shown.err
    grouped = run("consume", "Torn", "-g", "torn", "--from", "first", "--timeout", 3)
    assert len(grouped.out.splitlines()) == 4
    assert "delete the topic again, or create it there" in grouped.err
    assert "broker-a" in run("lag", "torn").out
    assert run("topic", "create", "Torn", "-b", "broker-b", "--queues", 2).status == 0
    assert run("topic", "describe", "Torn").status == 0
    asyncio.run(delete_at_b())
    assert run("topic", "delete", "Torn", "--yes").status == 0
    run("topic", "describe", "Torn").assert_refused(1, "no broker has the topic Torn")


@pytest.mark.parametrize("command", ["updateSubGroup", "deleteSubGroup"])
def test_mqadmins_group_commands_continue_after_a_broker_that_fails(
    run, cluster, monkeypatch, command
):
    group = f"Half{command}"
    assert run("group", "create", group).status == 0
    method = "create_group" if command == "updateSubGroup" else "delete_group"
    original = getattr(BrokerAdmin, method)

    async def failing(self, *args, **options):
        if self.address == cluster.addresses["broker-a"]:
            raise ConnectFailed("no")
        await original(self, *args, **options)

    monkeypatch.setattr(BrokerAdmin, method, failing)
    result = run(command, "-g", group, "-c", "DefaultCluster")
    assert result.status == 1
    assert f"{cluster.addresses['broker-a']}: no" in result.err
    assert f"{cluster.addresses['broker-b']}" in result.out
    assert "%RETRY%" not in result.out


def test_a_search_by_key_names_the_broker_that_hangs(run, cluster, frozen, monkeypatch):
    """A search may take 18 s, but a broker that hangs is named as quickly as by other commands."""
    monkeypatch.setattr(messages, "QUERY_TIMEOUTS", 200)
    run("topic", "create", "Keyed", "--queues", 1)
    assert run("produce", "Keyed", "found", "--count", 4, "-k", "order-17").status == 0
    search = ("message", "find", "Keyed", "-k", "order-17")
    wait_until(lambda: "broker-b" in run(*search).out, 30, "the index")
    (message,) = run(
        "consume", "Keyed", "--queue", "broker-a:0", "--offset", 0, "--max", 1, "--json"
    ).lines
    with frozen(cluster, "broker-b"):
        found = run(*search)
        shown = run("message", "show", message["message_id"], "-t", "Keyed")
    shown.assert_named(f"broker broker-b ({cluster.addresses['broker-b']}) hangs: ")
    out = found.assert_named(f"broker broker-b ({cluster.addresses['broker-b']}) hangs: ")
    assert "broker-a" in out


@pytest.mark.parametrize("options", [(), ("-g", "copiers")], ids=["observer", "group"])
def test_consume_names_the_queues_of_a_broker_that_hangs(cluster, pipe_to, options):
    """A silent broker may have more messages, so the command must not exit as if it had printed
    them all.
    """
    args = ("Orders", "--from", "first", "--timeout", "4", *options)
    child = pipe_to("consume", *args, "-n", cluster.namesrv)
    assert child.stdout.readline()
    cluster.send("broker-b", signal.SIGSTOP)
    try:
        _, err = child.communicate(timeout=60)
    finally:
        cluster.send("broker-b", signal.SIGCONT)
    assert child.returncode == 1
    address = cluster.addresses["broker-b"]
    assert (
        "cometmq: 2 queues (broker-b:0 broker-b:1) may not be read to the end: broker broker-b"
        f" ({address}) hangs: "
    ) in err.decode()


def test_an_observer_prints_the_messages_of_the_others_if_a_broker_hangs_at_its_start(run, hung):
    every = {str(number) for number in range(8)}
    read = run("consume", "Orders", "--from", "first", "--timeout", 4)
    printed = set(read.out.split())
    assert printed
    assert printed < every
    queues = "2 queues (broker-b:0 broker-b:1)"
    first, *_, last = read.err.splitlines()
    assert first.startswith(f"cometmq: {queues} can only be read once the broker answers: {hung}")
    read.assert_named(f"{queues} may not be read to the end: {hung}")
    assert last.startswith(f"cometmq: {queues} may not")


def test_an_observer_reads_a_broker_that_answers_later(cluster, hung, pipe_to):
    args = ("consume", "Orders", "--from", "first", "--max", "8", "--timeout", "60")
    child = pipe_to(*args, "-n", cluster.namesrv)
    assert b"can only be read once the broker answers" in child.stderr.readline()
    cluster.send("broker-b", signal.SIGCONT)
    out, err = child.communicate(timeout=90)
    assert sorted(out.decode().split()) == [str(number) for number in range(8)]
    assert child.returncode == 0, err


def test_an_observer_names_the_broker_if_none_answers(run, hung):
    run("consume", "Orders", "--queue", "broker-b:1").assert_refused(1, hung)


def test_a_group_that_is_new_to_a_hung_broker_is_not_called_known(run, hung):
    read = run("consume", "Orders", "-g", "newcomers", "--from", "first", "--max", 1)
    assert "has members or offsets" not in read.err
    assert "broker-b did not answer: if newcomers is new there" in read.err


def test_expected_brokers_that_are_not_registered_are_named(run):
    assert run("cluster", "--expect", "broker-a", "--expect", "broker-b").status == 0
    out = run("cluster", "--expect", "broker-c", "--expect", "broker-a").assert_named(
        "broker broker-c is not registered: it is down, uses other name servers, or "
    )
    assert "broker-b" in out


def test_consume_that_has_read_everything_ends_with_0(run):
    read = run("consume", "Orders", "--from", "first", "--timeout", 3)
    assert (read.status, len(read.out.splitlines())) == (0, 8)
    filtered = run("consume", "Orders", "--from", "first", "--tag", "none", "--timeout", 3)
    assert (filtered.status, filtered.out) == (0, "")


def test_broker_and_name_server_addresses_are_not_interchangeable(call, cluster):
    broker = cluster.addresses["broker-a"]
    line = f"{broker} is a broker, not a name server: "
    for command in ("cluster", "topic list", "lag", "clusterList", "getNamesrvConfig"):
        call(*command.split(), "-n", broker).assert_refused(1, line)
    for args in (("getBrokerConfig",), ("brokerStatus",), ("producer",)):
        result = call(*args, "-b", cluster.namesrv, "-n", cluster.namesrv)
        assert (result.status, result.out) == (1, "")
        assert f"{cluster.namesrv} is a name server, not a broker: " in result.err


def test_a_name_server_that_hangs_is_named(call, cluster, frozen):
    with frozen(cluster, "namesrv"):
        result = call("cluster", "-n", cluster.namesrv)
    result.assert_refused(1, f"no name server answers: {cluster.namesrv} accepts connections, ")
    assert "s (hung, or another program?); look at its log, or give another one" in result.err
    assert "start one" not in result.err


def test_lag_counts_the_queues_of_a_broker_that_the_group_has_not_reached(run, cluster, tmp_path):
    run("topic", "create", "Grown", "--queues", 1, "-b", "broker-a")
    run("group", "create", "keepers")
    run("produce", "Grown", "x", "--count", 3)
    read = run("consume", "Grown", "-g", "keepers", "--from", "first", "--max", 3, "--timeout", 60)
    assert read.status == 0
    run("topic", "create", "Grown", "--queues", 1, "-b", "broker-b")
    wait_until(lambda: "broker-b" in run("topic", "route", "Grown").out, 30, "the route")
    assert run("produce", "Grown", "x", "--count", 40).status == 0
    found = run("lag", "keepers", "--json").json
    assert found["lag"] == 40
    assert [it for it in found["queues"] if it["broker"] == "broker-b" and it["lag"]]
    rows = {row["group"]: row["lag"] for row in run("lag", "--json").json}
    assert rows["keepers"] == 40
    page = tmp_path / "lag.html"
    assert run("lag", "keepers", "--report", page).status == 0
    assert ">40<" in page.read_text()


@pytest.mark.parametrize(
    "verb",
    ["lag", "lag payers", "topic list", "topic describe Orders", "group list",
     "group describe payers", "message find Orders --key none"],
)  # fmt: skip
def test_a_broker_whose_answers_cannot_be_read_is_left_out(run, cluster, monkeypatch, verb):
    address, invoke = cluster.addresses["broker-b"], RemotingClient.invoke

    async def garbled(self, to, code, *args, **more):
        answer = await invoke(self, to, code, *args, **more)
        if to == address:
            answer.body = b"\x00garbage{"
        return answer

    monkeypatch.setattr(RemotingClient, "invoke", garbled)
    found = run(*verb.split())
    assert found.status == 1, found.err
    assert found.err.count("\n") == 1 + verb.startswith("message"), found.err
    assert f"broker broker-b ({address}) cannot be used: " in found.err
    assert found.out or verb.startswith("message")
