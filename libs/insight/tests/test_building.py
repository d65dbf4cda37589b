# SPDX-License-Identifier: Apache-2.0
from time import process_time

import msgspec
import pytest

from cometmq.insight.asking import Queue, Turns
from cometmq.insight.consumer_groups import NO_AGE, NOT_AGED, NOT_KEPT, loss_words
from cometmq.insight.history import History
from cometmq.insight.model import Since, Snapshot, TopicKind, Trouble, Unknown, Unreachable, known
from cometmq.remoting.bodies.connections import ProducerInfo
from cometmq.remoting.bodies.offsets import DelayOffsetTable
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.names import DLQ_REPLAY_GROUP

from .answers import NOW_MS, master, members, seen, silent, slave


def test_zero_empty_and_unreachable_are_different():
    empty = seen(master(topics={}, queues={}))
    assert list(empty.topics) == list(empty.groups) == []
    zero = seen(master(groups=["G"], offsets={"T@G": {0: 50}}))
    assert zero.group("G").lag == 0
    gone = seen(silent())
    assert isinstance(gone.topics, Unknown)
    assert isinstance(gone.groups, Unknown)
    assert isinstance(gone.brokers[0].state, Unreachable)
    assert gone.missing_brokers == ["broker-a"]


def test_lag_counts_what_can_still_be_read():
    group = seen(master(groups=["G"], offsets={"T@G": {0: 4}})).group("G")
    assert (group.lag, group.lost, group.skips) == (40, 6, 0)
    beyond = seen(master(groups=["G"], offsets={"T@G": {0: 99}})).group("G")
    assert (beyond.lag, beyond.skips) == (0, 40)


def test_queues_without_an_offset_are_unread():
    queues = {"T": {0: Queue(0, 10), 1: Queue(0, 5)}}
    group = seen(master(groups=["G"], offsets={"T@G": {0: 10}}, queues=queues)).group("G")
    assert group.lag == 5
    assert group.topics[0].unread_queues == 5  # the topic offers one queue to readers


def test_sums_cover_all_brokers_and_name_those_that_are_missing():
    one, two = (master(groups=["G"], offsets={"T@G": {0: 40}}) for _ in range(2))
    found = seen(one, two, silent(Trouble.HANGS))
    assert found.group("G").lag == 20
    assert found.topic("T").messages == 80
    assert list(found.topic("T").brokers) == ["broker-a", "broker-b"]
    assert found.group("G").missing_brokers == ["broker-c"]


def test_a_figure_that_was_not_told_is_unknown():
    found = seen(master(groups=["G"], offsets={"T@G": {0: 40}}, queues={}))
    assert isinstance(found.group("G").lag, Unknown)
    assert isinstance(found.topic("T").messages, Unknown)
    refused = seen(master(topics=Unknown("no permission")))
    assert refused.topics == Unknown("no permission")
    assert refused.notes == ["broker-a does not tell its topics: no permission"]


def test_offsets_of_a_deleted_topic_leave_the_lag_of_the_group_known():
    offsets = {"T@G": {0: 40}, "Gone@G": {0: 7}}
    assert seen(master(groups=["G"], offsets=offsets)).group("G").lag == 10
    # a broker that does not tell its topics may still have it
    silent = seen(master(groups=["G"], offsets=offsets, topics=Unknown("no permission")))
    assert isinstance(silent.group("G").lag, Unknown)


def test_topics_named_after_brokers_and_clusters_are_those_of_the_system():
    names = ("broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "other_REPLY_TOPIC", "T")
    found = seen(master(topics={it: TopicConfig(topic_name=it) for it in names}, queues={}))
    assert [it for it in names if found.topic(it).kind is TopicKind.NORMAL] == [*names[3:]]


def test_rates_need_two_looks():
    history = History()
    one = seen(master(groups=["G"], offsets={"T@G": {0: 20}}), history=history)
    assert isinstance(one.topic("T").in_per_s, Unknown)
    later = master(groups=["G"], offsets={"T@G": {0: 30}}, queues={"T": {0: Queue(10, 70)}})
    two = seen(later, history=history, now_ms=NOW_MS + 10_000)
    assert two.topic("T").in_per_s == 2.0
    assert two.group("G").out_per_s == 1.0


@pytest.mark.parametrize("jump_ms", [6 * 3_600_000, -6 * 3_600_000], ids=["forward", "back"])
def test_a_wall_clock_that_is_set_starts_a_new_history(jump_ms):
    history, moved_ms = History(), NOW_MS + 60_000 + jump_ms
    seen(master(groups=["G"], offsets={"T@G": {0: 20}}), history=history)
    history.since("broken", NOW_MS)
    later = master(groups=["G"], offsets={"T@G": {0: 20}}, queues={"T": {0: Queue(10, 170)}})
    found = seen(later, history=history, now_ms=moved_ms, jump_ms=jump_ms)
    assert isinstance(found.topic("T").in_per_s, Unknown)
    assert history.progress["G"].still_since == Since(moved_ms, is_bound=True)
    assert history.since("broken", moved_ms) == Since(moved_ms, is_bound=True)


def test_members_of_several_brokers_are_one():
    one = master(groups=["G"], consumers={"G": members("a", "b")})
    two = master(groups=["G"], consumers={"G": members("a")})
    group = seen(one, two).group("G")
    assert [(it.client_id, list(it.brokers)) for it in group.members] == [
        ("a", ["broker-a", "broker-b"]),
        ("b", ["broker-a"]),
    ]
    twins = master(groups=["G"], consumers={"G": members("a", "a")})
    assert len(seen(twins).group("G").members) == 2


def test_broadcasting_groups_have_no_lag():
    online = members("a", model="BROADCASTING")
    found = seen(master(groups=["G"], consumers={"G": online})).group("G")
    assert isinstance(found.lag, Unknown)
    assert found.is_broadcasting


def test_dead_letters_half_messages_and_delays_are_counted():
    names = ("%DLQ%G", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
    found = seen(
        master(
            topics={name: TopicConfig(topic_name=name) for name in names},
            groups=["G"],
            queues={
                names[0]: {0: Queue(2, 5)},
                names[1]: {0: Queue(0, 9)},
                names[2]: {0: Queue(0, 3), 2: Queue(0, 8)},
            },
            offsets={f"{names[1]}@CID_RMQ_SYS_TRANS": {0: 4}},
            delays=DelayOffsetTable({1: 3, 3: 2}, recalled={3: {1: "a", 4: "b", 8: "c"}}),
            settings={"messageDelayLevel": "1s 5s 10s"},
            producers={"P": [ProducerInfo("c", remote_ip="10.0.0.9:1")]},
        )
    )
    assert found.group("G").dead_letters == 3
    assert found.half_messages[0].waiting_max == 5
    assert [(it.level, it.waiting, it.delay_text) for it in found.delayed] == [(3, 5, "10s")]
    assert found.topic("%DLQ%G").kind is TopicKind.DEAD_LETTERS
    assert found.producers[0].client_id == "c"


def test_slaves_lag_behind_their_master():
    found = seen(
        ("a", 0, master(runtime={"commitLogMaxOffset": "1000"})),
        ("a", 1, slave(commitLogMaxOffset="400")),
        ("b", 1, slave(commitLogMaxOffset="400")),
    )
    assert [it.state.behind_bytes for it in found.brokers[:2]] == [None, 600]
    assert isinstance(found.brokers[2].state.behind_bytes, Unknown)


def test_a_growing_disk_has_a_time_to_full():
    history = History()
    facts = {
        "commitLogDiskRatio": "0.60",
        "commitLogDirCapacity": "Total : 10.0 GiB, Free : 4.0 GiB.",
        "commitLogMaxOffset": "0",
    }
    seen(master(runtime=facts), history=history)
    grown = facts | {"commitLogMaxOffset": str(1 << 30)}
    found = seen(master(runtime=grown), history=history, now_ms=NOW_MS + 100_000)
    disk = found.brokers[0].state.disk
    assert (disk.free_bytes, disk.full_in_s) == (4 << 30, 400)
    history = History()
    seen(master(runtime=facts), history=history)
    little = facts | {"commitLogMaxOffset": "1000"}  # 4 GiB last for 13 years
    found = seen(master(runtime=little), history=history, now_ms=NOW_MS + 100_000)
    assert found.brokers[0].state.disk.full_in_s is None
    lies = {"commitLogDiskRatio": "nan", "commitLogMaxOffset": "inf", "bootTimestamp": "-inf"}
    assert isinstance(seen(master(runtime=lies)).brokers[0].state.disk, Unknown)


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5_000])
def test_numbers_too_long_for_a_figure_are_unknown(digits):
    lies = {
        "commitLogDiskRatio": "0.60",
        "commitLogDirCapacity": f"Total : {digits} GiB, Free : {digits} GiB.",
        "commitLogMinOffset": f"-{digits}",
        "groupEpoch": digits,
        "groupMembers": digits,
        "groupInSync": digits,
        "memory": f"resident={digits}",
    }
    settings = {"fileReservedTime": digits}
    history = History()
    answers = master(groups=["G"], offsets={"T@G": {0: 20}}, runtime=lies, settings=settings)
    seen(answers, history=history)
    found = seen(answers, history=history, now_ms=NOW_MS + 100_000)
    state = found.brokers[0].state
    assert (state.disk.total_bytes, state.epoch) == (None, None)
    assert isinstance(state.memory, Unknown)
    told = msgspec.structs.replace(answers.master, oldest_unread_ms={"T@G": NOW_MS})
    answers = msgspec.structs.replace(answers, master=told)
    assert seen(answers).group("G").loss_s == NOT_KEPT


def test_a_snapshot_survives_json():
    found = seen(master(groups=["G"], offsets={"T@G": {0: 20}}), silent())
    data = msgspec.json.encode(found)
    assert msgspec.json.encode(msgspec.json.decode(data, type=Snapshot)) == data


def test_turns_begin_with_the_oldest_answer():
    turns: Turns[str] = Turns()
    assert turns.next(["a", "b", "c"], 2) == ["a", "b", "c"]
    for at, name in enumerate("abc"):
        turns.told(name, name, at)
    assert turns.next(["a", "b", "c", "d"], 2) == ["d", "a"]
    turns.next(["b", "c", "d"], 2)
    assert set(turns.answers) == {"b", "c"}


def large():
    topics = {f"T{at}": TopicConfig(topic_name=f"T{at}", read_queue_nums=8) for at in range(1_000)}
    groups = [f"G{at}" for at in range(2_000)]
    offsets = {f"T{at % 1_000}@G{at}": dict.fromkeys(range(8), 50) for at in range(2_000)}
    queues = {name: {at: Queue(0, 100) for at in range(8)} for name in topics}
    return master(topics=topics, groups=groups, offsets=offsets, queues=queues)


@pytest.mark.load
def test_a_large_cluster_is_summed_quickly():
    answers = large()
    begun = process_time()
    found = seen(answers)
    assert process_time() - begun < 1  # 0.05 s alone on a quiet core
    assert len(found.groups) == 2_000
    assert found.group("G7").lag == 400


def aged(ages):
    answers = master(groups=["G"], offsets={"T@G": {0: 20}})
    told = msgspec.structs.replace(answers.master, oldest_unread_ms=ages)
    return msgspec.structs.replace(answers, master=told)


def test_the_oldest_unread_message_of_all_brokers_counts():
    found = seen(aged({"T@G": NOW_MS - 9_000}), aged({"T@G": NOW_MS - 2_000})).group("G")
    assert found.behind_s == 9.0
    half = seen(aged({"T@G": NOW_MS - 9_000}), aged({})).group("G")
    assert isinstance(half.behind_s, Unknown)
    assert isinstance(seen(aged(None)).group("G").behind_s, Unknown)


def test_a_group_that_has_stopped_says_since_when_it_reads_nothing():
    """Not since its oldest unread message was stored, which may be long before or after."""
    history, start_ms = History(), NOW_MS - 3_600_000

    def pause(offset, at_s, *, online=True):
        consumers = {"G": members("c")} if online else {}
        answers = master(groups=["G"], offsets={"T@G": {0: offset}}, consumers=consumers)
        told = msgspec.structs.replace(answers.master, oldest_unread_ms={"T@G": start_ms})
        answers = msgspec.structs.replace(answers, master=told)
        group = seen(answers, history=history, now_ms=NOW_MS + at_s * 1_000).group("G")
        return group.still_since

    assert pause(20, 0) is None
    assert pause(20, 40) == Since(NOW_MS, is_bound=True)
    assert pause(21, 60) is None
    assert pause(21, 65) is None, "its members commit every 5 s"
    stopped = Since(NOW_MS + 60_000)
    assert pause(21, 65, online=False) == stopped
    assert pause(21, 660) == stopped
    assert pause(50, 700) is None, "nothing is unread"


def test_a_group_that_has_read_nothing_says_so():
    """It does not read since its first message came, not since the second look."""
    history = History()
    queues = {"T": {0: Queue(0, 60)}}

    def look(offset, at_s, **more):
        more = {"queues": queues, "consumers": {"G": members("c")}} | more
        answers = master(groups=["G"], offsets={"T@G": {0: offset}}, **more)
        told = msgspec.structs.replace(answers.master, oldest_unread_ms={"T@G": NOW_MS - 9_000})
        answers = msgspec.structs.replace(answers, master=told)
        return seen(answers, history=history, now_ms=NOW_MS + at_s * 1_000).group("G")

    look(0, 0, queues={"T": {0: Queue(0, 0)}})
    look(0, 10)
    unread = look(0, 50)
    assert unread.has_read_nothing
    assert unread.still_since == Since(NOW_MS - 9_000)
    assert not look(1, 60).has_read_nothing


DEAD = "%DLQ%G"


def with_dead(end, sent=None, **facts):
    answers = master(
        topics={DEAD: TopicConfig(topic_name=DEAD)},
        groups=["G"],
        offsets={} if sent is None else {f"{DEAD}@{DLQ_REPLAY_GROUP}": {0: sent}},
        queues={DEAD: {0: Queue(0, end)}},
    )
    return msgspec.structs.replace(answers, master=msgspec.structs.replace(answers.master, **facts))


@pytest.mark.parametrize(
    ("end", "sent", "left"), [(60, None, 60), (60, 60, 0), (61, 60, 1), (5, 60, 5), (0, None, 0)]
)
def test_dead_letters_that_were_sent_again_are_told_apart(end, sent, left):
    """A position beyond the end belongs to an older topic of the same name."""
    group = seen(with_dead(end, sent)).group("G")
    assert (group.dead_letters, group.dead_left) == (end, left)


def test_dead_letters_are_old_since_the_first_that_was_not_sent_again():
    first, unread = {DEAD: NOW_MS - 50_000}, {f"{DEAD}@{DLQ_REPLAY_GROUP}": NOW_MS - 7_000}

    def since(*answers):
        return seen(*answers).group("G").dead_since

    assert since(with_dead(60, first_dead_ms=first)) == Since(NOW_MS - 50_000)
    replayed = with_dead(61, 60, first_dead_ms=first, oldest_unread_ms=unread)
    assert since(replayed) == Since(NOW_MS - 7_000)
    assert since(with_dead(61, 60, first_dead_ms=first)) == Since(NOW_MS, is_bound=True)
    both = with_dead(60, first_dead_ms=first), with_dead(60)
    assert since(*both) == Since(NOW_MS - 50_000, is_bound=True)
    assert since(with_dead(60, 60, first_dead_ms=first)) is None


def test_dead_letters_of_a_silent_broker_are_at_least_as_old_as_the_first_look_at_them():
    history, told = History(), []
    for at, (end, sent) in enumerate(((0, None), (3, None), (4, None), (4, 4), (5, 4))):
        snapshot = seen(with_dead(end, sent), history=history, now_ms=NOW_MS + at * 5_000)
        told.append(snapshot.group("G").dead_since)
    seen_ms = [None if it is None else (it.ms - NOW_MS, it.is_bound) for it in told]
    assert seen_ms == [None, (5_000, True), (5_000, True), None, (20_000, True)]


def test_a_later_history_knows_since_when_a_group_reads_nothing():
    """A console that starts again begins with the pauses that it has kept."""

    def look(history, offset, at_s):
        answers = master(groups=["G"], offsets={"T@G": {0: offset}})
        group = seen(answers, history=history, now_ms=NOW_MS + at_s * 1_000).group("G")
        return group.still_since

    first = History()
    look(first, 20, 0)
    stopped = look(first, 21, 60)
    assert first.pauses == {}, "it has read since the snapshot before"
    assert look(first, 21, 65) == stopped == Since(NOW_MS + 60_000)
    for offset, since in ((21, stopped), (22, Since(NOW_MS + 600_000, is_bound=True))):
        later = History()
        later.progress |= first.pauses
        assert look(later, offset, 600) == since


def test_the_time_to_loss_is_that_of_the_broker_that_deletes_first():
    def loss(*brokers):
        answers = [
            msgspec.structs.replace(aged(ages), settings={"fileReservedTime": hours})
            for ages, hours in brokers
        ]
        return seen(*answers).group("G").loss_s

    old, new = {"T@G": NOW_MS - 7_200_000}, {"T@G": NOW_MS - 1_000}
    assert loss((old, "72")) == 70 * 3_600
    assert loss((old, "72"), (new, "1")) == 3_599
    assert loss((old, "1")) == 0
    assert loss((old, "72"), ({}, "72")) == NOT_AGED
    assert loss((None, "72")) == NO_AGE
    assert loss((old, "72"), (new, "")) == NOT_KEPT
    read = master(groups=["G"], offsets={"T@G": {0: 50}})
    assert seen(read).group("G").loss_s is None
    words = [loss_words(it) for it in (None, NOT_AGED, 0.0, 252_000.0)]
    assert words == ["never", "unknown", "0 s", "2 d 22 h"]


def test_memory_is_divided_among_its_parts():
    told = "resident=1000,program=200,pullCache=300,unread=0,peak=1500,limit=4000"
    (broker,) = seen(master(runtime={"memory": told})).brokers
    memory = broker.state.memory
    assert (memory.resident_bytes, memory.peak_bytes, memory.limit_bytes) == (1_000, 1_500, 4_000)
    assert memory.used_ratio == 0.25
    assert [(it.title, it.size) for it in memory.parts] == [
        ("tables, connections and interpreter", 500), ("records kept for pulls", 300),
        ("programs and libraries", 200),
    ]  # fmt: skip


@pytest.mark.parametrize("told", ["", "resident=0", "resident=-5", "resident=x,program=1", "=,=="])
def test_memory_that_is_not_told_is_unknown(told):
    (broker,) = seen(master(runtime={"memory": told})).brokers
    assert isinstance(broker.state.memory, Unknown)


def test_parts_that_exceed_the_memory_are_left_out():
    (broker,) = seen(master(runtime={"memory": "resident=10,program=90,pullCache=4"})).brokers
    assert sum(it.size for it in broker.state.memory.parts) == 10


def test_groups_with_only_offsets_are_listed_under_names_that_consumers_can_use():
    places = ("T@G", "T@%RETRY%G", "T@%DLQ%G", "T@not a name", "T@")
    found = seen(master(offsets={place: {0: 20} for place in places}))
    assert [(it.name, it.lag, it.retries, it.is_enabled) for it in known(found.groups)] == [
        ("G", 30, 16, True)
    ]
