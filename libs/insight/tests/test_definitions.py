# SPDX-License-Identifier: Apache-2.0
"""Definitions: the file, what an import would do, and what it does."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from cometmq.client.errors import InvalidArgument
from cometmq.insight import definitions
from cometmq.insight.changes.definitions import (
    Fate,
    Outcome,
    carry_out,
    compared,
    read_secrets,
    summary,
)
from cometmq.insight.definitions import (
    AccountEntry,
    AddressesEntry,
    Definitions,
    GroupEntry,
    State,
    TopicEntry,
    decode,
    encode,
    read_state,
)
from cometmq.remoting.errors import ConnectFailed, RequestTimeout, ServerError

TOPIC = TopicEntry(topic_name="orders", read_queue_nums=4, write_queue_nums=4)
GROUP = GroupEntry(group_name="billing")
ACCOUNT = AccountEntry(access_key="seller", topic_perms=("orders=PUB",))


def file(**parts):
    given: Any = {name: tuple(its) if isinstance(its, list) else its for name, its in parts.items()}
    return Definitions(format=definitions.FORMAT, version=definitions.VERSION, **given)


def state(brokers=("a", "b"), *, topics=(), groups=(), accounts=(), **more):
    """Return a cluster whose brokers all have these."""
    masters: Any = {it: SimpleNamespace(address=f"{it}:1", name=it) for it in brokers}
    return State(
        namesrv="n:9876",
        masters=masters,
        reserved=frozenset(brokers),
        topics={it: {one.topic_name: one for one in topics} for it in brokers},
        groups={it: {one.group_name: one for one in groups} for it in brokers},
        accounts={it: {one.access_key: one for one in accounts} for it in brokers},
        addresses={it: {"": AddressesEntry()} for it in brokers},
        order_config=more.pop("order_config", {}),
        silent=more.pop("silent", {}),
        **more,
    )


def fates(found):
    return [(row.kind, row.name, row.place, row.fate) for row in found]


# -- the file -------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written():
    found = file(topics=[TOPIC], groups=[GROUP], accounts=[ACCOUNT], order_config={"orders": "a:4"})
    assert decode(encode(found)) == found
    assert b"\n" in encode(found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: it.update(format="rabbit"), "this is no file of definitions"),
        (lambda it: it.update(version=2), "the file has the version 2"),
        (lambda it: it.update(queues=[]), "unknown field `queues`"),
        (lambda it: it["topics"][0].update(perms=6), r"unknown field `perms`.*topics\[0\]"),
        (lambda it: it["topics"][0].update(topicName=""), "the name of the topic is empty"),
        (
            lambda it: it["topics"][0].update(readQueueNums=20_000),
            r"<= 16384 - at `\$.topics\[0\].readQ",
        ),
        (lambda it: it["topics"][0].update(readQueueNums="4"), "Expected `int`"),
        (lambda it: it["topics"][0].update(perm=9), r"<= 7 - at `\$.topics\[0\].perm"),
        (lambda it: it["topics"].append(it["topics"][0]), "several entries for one broker"),
        (lambda it: it["groups"][0].update(groupName=""), "the name of the group is empty"),
        (lambda it: it["accounts"][0].update(secretKey="x"), "secret keys do not belong into it"),
        (lambda it: it["accounts"][0].update(topicPerms=["x=ALL"]), r"DENY\|PUB.*topicPerms\[0\]"),
        (lambda it: it["accounts"][0].update(topicPerms=["=PUB"]), r"=\]\*=.*topicPerms\[0\]"),
        (lambda it: it.update(orderConfig={"orders": "4"}), "must be BROKER:QUEUES"),
        (lambda it: it.update(orderConfig={"orders": "a:16384;b:1"}), "16,385 queues at all brok"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(change, reason):
    found = msgspec.json.decode(encode(file(topics=[TOPIC], groups=[GROUP], accounts=[ACCOUNT])))
    change(found)
    with pytest.raises(InvalidArgument, match=reason):
        decode(msgspec.json.encode(found))


@pytest.mark.parametrize("data", [b"", b"[", b"[" * 100_000, b"\xff{}", b"null", b"{}", b"[1]"])
def test_what_is_no_definitions_is_refused(data):
    with pytest.raises(InvalidArgument, match=r"the file is wrong|no file of definitions"):
        decode(data)


def test_names_that_only_peers_choose_are_refused_one_by_one():
    """An export has them, and they must not make all of it useless."""
    odd = msgspec.structs.replace(TOPIC, topic_name="a b", brokers=UNSET)
    strange = msgspec.structs.replace(GROUP, group_name="\x9b31m", brokers=UNSET)
    written = file(topics=[TOPIC, odd], groups=[GROUP, strange], order_config={"c d": "a:4"})
    found = compared(state(), decode(encode(written)))
    wrong = [row for row in found if row.fate is Fate.REFUSED]
    assert {row.name for row in wrong} == {"a b", "\x9b31m", "c d"}
    assert all("illegal characters" in row.text for row in wrong)
    changes = {row.name for row in found if row.is_change}
    assert changes == {TOPIC.topic_name, GROUP.group_name}


def test_brokers_that_differ_have_entries_of_their_own():
    found = state(topics=[TOPIC], groups=[GROUP])
    other = msgspec.structs.replace(TOPIC, perm=4)
    found.topics["b"]["orders"] = other
    found.groups["b"].clear()
    written = found.definitions()
    assert [(it.perm, it.brokers) for it in written.topics] == [(6, ("a",)), (4, ("b",))]
    assert written.groups == (msgspec.structs.replace(GROUP, brokers=("a",)),)
    assert {row.fate for row in compared(found, written)} == {Fate.EQUAL}


# -- the plan -------------------------------------------------------------------------------------


def test_each_definition_has_its_fate():
    new = TopicEntry(topic_name="new", read_queue_nums=1, write_queue_nums=1, brokers=("b",))
    larger = msgspec.structs.replace(TOPIC, read_queue_nums=8, write_queue_nums=8, perm=4)
    kept = TopicEntry(topic_name="kept", read_queue_nums=1, write_queue_nums=1)
    found = compared(
        state(topics=[TOPIC, kept], groups=[GROUP]), file(topics=[larger, new], groups=[GROUP])
    )
    assert fates(found) == [
        ("topic", "orders", "a", Fate.CHANGED),
        ("topic", "orders", "b", Fate.CHANGED),
        ("topic", "new", "b", Fate.CREATED),
        ("group", "billing", "a", Fate.EQUAL),
        ("group", "billing", "b", Fate.EQUAL),
    ]
    assert found[0].text == "readQueueNums 4 -> 8; writeQueueNums 4 -> 8; perm 6 -> 4"


def refused(wanted, **cluster):
    found = compared(state(**cluster), wanted)
    return {row.text for row in found if row.fate is Fate.REFUSED}


def topic(name="orders", read=4, write=4, **more):
    return TopicEntry(topic_name=name, read_queue_nums=read, write_queue_nums=write, **more)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (topic(brokers=("c",)), "this cluster has no broker c; it has a, b"),
        (topic(read=2, write=2), "consumers would lose queues"),
        (topic(write=5), "producers would send to 5 queues"),
        (topic("%RETRY%billing"), "servers create this topic themselves"),
        (topic("a"), "servers create this topic themselves"),
        (topic("SCHEDULE_TOPIC_XXXX"), "servers create this topic themselves"),
    ],
)
def test_a_topic_that_would_harm_is_refused(entry, reason):
    (found,) = refused(file(topics=[entry]), topics=[topic()])
    assert reason in found


def test_a_topic_with_more_queues_than_clients_use_is_refused():
    wide = topic(read=8_193, write=8_193)
    (found,) = refused(file(topics=[wide]))
    assert found.startswith("the topic orders would have 16,386 queues at all brokers")
    at_one = topic(read=8_193, write=8_193, brokers=("a",))
    assert refused(file(topics=[at_one])) == set()
    assert refused(file(topics=[at_one]), topics=[topic(read=8_192, write=8_192)]) == {
        found.replace("16,386", "16,385")
    }
    # What is too wide already may change, but not grow.
    closed = topic(read=8_193, write=8_193, perm=4)
    assert refused(file(topics=[closed]), topics=[wide]) == set()


@pytest.mark.timeout(60)
def test_a_file_of_many_topics_is_planned_in_time():
    count = 100_000
    topics = [topic(f"t{number}", 1, 1, brokers=("a",)) for number in range(count)]
    assert len(compared(state(), file(topics=topics))) == count


def test_a_new_account_without_a_signature_is_seen_in_the_compared():
    account = AccountEntry(access_key="harmless", white_remote_address="*")
    row = compared(state(), file(accounts=[account]))[0]
    assert row.text == "topics DENY, groups DENY; all rights without a signature from *"


def test_groups_and_rights_that_cannot_be_imported_are_refused():
    own = GroupEntry(group_name="TOOLS_CONSUMER")
    wrong = GroupEntry(group_name="wrong", retry_max_times=-1)
    assert refused(file(groups=[own, wrong])) == {
        "servers and tools create this group themselves", "retryMaxTimes must not be negative",
    }  # fmt: skip
    cleared = AccountEntry(access_key="seller", default_topic_perm="SUB")
    (found,) = refused(file(accounts=[cleared]), accounts=[ACCOUNT])
    assert "cannot clear topicPerms" in found
    silent = dict.fromkeys("ab", "access control is off")
    (found,) = refused(file(accounts=[ACCOUNT]), silent=silent)
    assert found.endswith("access control is off")


def test_what_is_equal_is_never_refused():
    odd = topic(read=2, write=4)
    assert {row.fate for row in compared(state(topics=[odd]), file(topics=[odd]))} == {Fate.EQUAL}


# -- the import -----------------------------------------------------------------------------------


class Recorder:
    """Stands for an admin client whose broker b fails as a test wants."""

    def __init__(self, failure=None):
        self.changes = []
        self._failure = failure

    def broker(self, _address, *, name):
        def change(config):
            return self._change(name, config)

        return SimpleNamespace(create_topic=change, create_group=change, put_account=change)

    async def set_order_config(self, name, config):
        self.changes.append(("name servers", name, config))

    async def _change(self, place, config):
        if place == "b" and self._failure is not None:
            raise self._failure
        self.changes.append((place, config))


def recorder(failure=None) -> Any:
    return Recorder(failure)


WANTED = file(topics=[topic(), topic("other")], groups=[GROUP], order_config={"orders": "a:4"})


async def test_everything_is_imported():
    admin, found = recorder(), state()
    imported = await carry_out(admin, found, compared(found, WANTED), {})
    assert {it.outcome for it in imported} == {Outcome.DONE}
    assert len(imported) == len(admin.changes) == 7
    assert summary(imported) == "7 definitions imported"


@pytest.mark.parametrize(
    ("failure", "outcomes"),
    [
        (ServerError("no"), [Outcome.FAILED] * 3),
        (RequestTimeout("b hangs"), [Outcome.UNSURE, Outcome.UNTRIED, Outcome.UNTRIED]),
        (ConnectFailed("refused"), [Outcome.FAILED, Outcome.UNTRIED, Outcome.UNTRIED]),
    ],
)
async def test_what_a_failing_broker_leaves_is_named_exactly(failure, outcomes):
    admin, found = recorder(failure), state()
    imported = await carry_out(admin, found, compared(found, WANTED), {})
    assert [it.outcome for it in imported if it.row.place == "b"] == outcomes
    assert {it.outcome for it in imported if it.row.place != "b"} == {Outcome.DONE}
    text = summary(imported)
    assert text.startswith("4 definitions imported; ")
    assert "topic orders at b" in text


async def test_a_missing_secret_is_noticed_before_the_first_change():
    admin, found = recorder(), state()
    wanted = file(topics=[topic()], accounts=[ACCOUNT])
    with pytest.raises(InvalidArgument, match="the secret keys of seller are missing"):
        await carry_out(admin, found, compared(found, wanted), {})
    assert admin.changes == []
    secrets = read_secrets(["# keys", "", "seller seller-secret"], "keys")
    imported = await carry_out(admin, found, compared(found, wanted), secrets)
    assert {it.outcome for it in imported} == {Outcome.DONE}
    account = next(it for _, it in admin.changes if hasattr(it, "secret_key"))
    assert (account.secret_key, account.topic_perms) == ("seller-secret", ["orders=PUB"])


async def test_the_secret_that_a_broker_tells_is_kept():
    told = {(it, "seller"): "told-secret" for it in "ab"}
    found = state(accounts=[msgspec.structs.replace(ACCOUNT, admin=True)], secrets=told)
    admin = recorder()
    await carry_out(admin, found, compared(found, file(accounts=[ACCOUNT])), {})
    assert {it.secret_key for _, it in admin.changes} == {"told-secret"}


@pytest.mark.parametrize("line", ["seller", "seller a b", "seller short"])
def test_a_wrong_line_of_secrets_is_named(line):
    with pytest.raises(InvalidArgument, match="line 2 of keys"):
        read_secrets(["", line], "keys")


async def test_an_export_is_imported_into_an_empty_cluster(admin):
    """A real suite: delete what was exported, import it, and compare."""
    await admin.create_topic("Exported", queue_count=3)
    await admin.set_order_config("Exported", "broker:3")
    before = await read_state(admin)
    written = before.definitions()
    mine = [it for it in written.topics if it.topic_name == "Exported"]
    assert [(it.read_queue_nums, it.brokers) for it in mine] == [(3, UNSET)]
    assert written.order_config["Exported"] == "broker:3"
    assert all(before.silent.values())
    assert not written.accounts
    await admin.delete_topic("Exported")
    await admin.delete_order_config("Exported")
    now = await read_state(admin)
    found = compared(now, decode(encode(written)))
    assert {(row.kind, row.name) for row in found if row.is_change} == {
        ("topic", "Exported"), ("order", "Exported"),
    }  # fmt: skip
    assert len(await carry_out(admin, now, found, {})) == 2
    after = await read_state(admin)
    assert not any(row.is_change for row in compared(after, written))
