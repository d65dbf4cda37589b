# SPDX-License-Identifier: Apache-2.0
"""`produce` and `consume` against a running suite."""

import json
import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

from cometmq.client import InvalidArgument, Message
from cometmq.insight import message_json
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_port
from cometmq.peers.processes import Child


def bodies(result):
    assert result.status == 0, result.err
    return sorted(line["body"] for line in result.lines)


def read_all(ask, topic, count, *args):
    return ask(
        "consume", topic, "--from", "first", "--max", count, "--timeout", 60, "--json", *args
    )


def test_produced_messages_are_consumed_with_all_their_fields(ask, topic):
    sent = ask(
        *("produce", topic, "hello", "wörld", "--tag", "Greeting", "--json"),
        *("-k", "k1", "-k", "k2", "-p", "colour=blue"),
    ).json
    assert sent["sent"] == 2
    assert [row["status"] for row in sent["first_results"]] == ["SEND_OK"] * 2
    messages = read_all(ask, topic, 2)
    assert bodies(messages) == ["hello", "wörld"]
    ids = {row["message_id"] for row in sent["first_results"]}
    assert {message["message_id"] for message in messages.lines} == ids
    for message in messages.lines:
        assert message["topic"] == topic
        assert message["tag"] == "Greeting"
        assert message["keys"] == ["k1", "k2"]
        assert message["properties"]["colour"] == "blue"


def test_bodies_are_printed_as_they_are(ask, topic):
    ask("produce", topic, "one")
    result = ask("consume", topic, "--from", "first", "--max", 1, "--timeout", 60)
    assert (result.status, result.out) == (0, "one\n")


def test_few_messages_are_listed_and_many_are_counted(ask, topic):
    few = ask("produce", topic, "a", "b").out.splitlines()
    assert few[0].split() == ["Message", "id", "Status", "Broker", "Queue", "Offset"]
    assert len(few) == 3
    many = ask("produce", topic, "a", "--count", 100).out.splitlines()
    assert many[0].split() == ["sent", "100"]


def test_every_line_of_standard_input_is_a_message(pipe, ask, topic):
    result = pipe("produce", topic, "--json", stdin=b"one\n\ntwo\r\nthree")
    assert (result.json["sent"], result.json["empty_lines_skipped"]) == (3, 1)
    assert result.err == (
        "cometmq: 1 empty line was not sent: brokers store no message without a body\n"
        "cometmq: 1 line ends in CR LF, which is not sent; for bodies that end in CR, use"
        " --json-lines\n"
    )
    assert bodies(read_all(ask, topic, 3)) == ["one", "three", "two"]


def test_a_body_may_end_in_cr_as_a_json_line(pipe, ask, topic):
    assert pipe("produce", topic, "--json-lines", stdin=b'{"body":"kept\\r"}\r\n').status == 0
    assert bodies(read_all(ask, topic, 1)) == ["kept\r"]


def test_lines_of_a_file_in_order_up_to_a_count(ask, topic, tmp_path):
    (tmp_path / "lines").write_text("".join(f"{number:03}\n" for number in range(50)))
    sent = ask(
        *("produce", topic, "-f", tmp_path / "lines", "--count", 40),
        *("--in-flight", 1, "--json"),
    )
    assert sent.json["sent"] == 40
    messages = read_all(ask, topic, 40)
    assert bodies(messages) == [f"{number:03}" for number in range(40)]
    for queue in (0, 1):
        own = [line["body"] for line in messages.lines if line["queue_id"] == queue]
        assert own == sorted(own)


def test_produce_sends_the_output_of_consume(ask, pipe, topic):
    ask("produce", topic, "text", "--tag", "T", "-k", "key", "-p", "a=b")
    ask("produce", topic, b"\xff\xfe".decode("utf-8", "surrogateescape"), "--delay-level", 0)
    first = read_all(ask, topic, 2)
    copy = f"{topic}Copy"
    assert ask("topic", "create", copy).status == 0
    assert pipe("produce", copy, "--json-lines", stdin=first.out.encode()).status == 0
    names = ("body", "body_base64", "tag", "keys", "properties")

    def chosen(result):
        return sorted(str([line.get(name) for name in names]) for line in result.lines)

    assert chosen(read_all(ask, copy, 2)) == chosen(first)


def test_a_line_that_is_not_a_message_is_refused():
    defaults = Message("T", b"", tag="D", properties={"a": "1"})
    kept = message_json.parse(b'{"body":"x","properties":{"b":"2"}}', defaults=defaults)
    assert kept == Message("T", b"x", tag="D", keys=(), properties={"a": "1", "b": "2"})
    for line in (b"{", b'{"body":1}', b'{"body_base64":"?"}'):
        with pytest.raises(InvalidArgument):
            message_json.parse(line, defaults=defaults)


def test_a_topic_that_produce_creates_is_named(ask, topic):
    assert ask("produce", topic, "x").err == ""
    first = ask("produce", f"{topic}-new", "x")
    assert (first.status, first.err.count("\n")) == (0, 1)
    assert first.err.startswith(f"cometmq: no broker had the topic {topic}-new, so it was created")
    assert ask("produce", f"{topic}-new", "x").err == ""


def test_a_rate_is_kept(ask, topic):
    sent = ask("produce", topic, "x", "--count", 11, "--rate", 50, "--json").json
    assert sent["seconds"] >= 0.2


def test_a_delayed_message_is_delivered_later(ask, topic):
    produced = ask("produce", topic, "later", "--delay-level", 1)
    head, row = produced.out.splitlines()
    assert head.split() == ["Message", "id", "Status", "Broker", "Queue", "Offset", "Delay"]
    assert row.split()[3:] == ["-", "-", "1s"]  # it has no queue and no offset yet
    (message,) = read_all(ask, topic, 1).lines
    assert message["store_timestamp"] - message["born_timestamp"] >= 900


def test_a_message_is_delivered_at_a_time(ask, topic):
    produced = ask("produce", topic, "soon", "--in", "1s")
    assert produced.out.splitlines()[1].split()[3:] == ["-", "-", "in", "0:00:01"]
    due = datetime.now(UTC) + timedelta(hours=50)
    later = ask("produce", topic, "later", "--at", due.isoformat(), "--json").json
    text = f"{due:%Y-%m-%dT%H:%M}"
    assert later["first_results"][0]["delay"].startswith(text)
    (message,) = read_all(ask, topic, 1).lines
    assert message["body"] == "soon"
    assert 1_000 <= message["store_timestamp"] - message["born_timestamp"] < 30_000
    recalled = ask(
        "message", "recall", later["first_results"][0]["message_id"], "-t", topic, "--yes", "--json"
    )
    assert recalled.json[0]["due"].startswith(text)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--at", "90m"), "--at 90m is in the past"),
        (("--at", "tomorrow"), "tomorrow is not a time"),
        (("--in", "soon"), "soon is not a duration: give 30s, 90m, 12h or 3d"),
        (("--in", "1s", "--at", "2100-01-01T00:00Z"), "--at cannot be combined with --in"),
        (("--in", "1s", "--delay-level", 1), "a message has either `deliver_at` or `delay_level`"),
    ],
)
def test_wrong_times_are_refused(ask, topic, args, text):
    ask("produce", topic, "x", *args).assert_refused(2, text)


def test_a_time_beyond_three_days_is_refused_by_the_broker(ask, topic):
    refused = ask("produce", topic, "x", "--in", "4d")
    assert refused.status == 1
    assert "should not be bigger than the max delay 259200000ms" in refused.err


def test_the_delays_of_json_lines_are_shown_by_message(pipe, topic):
    lines = b'{"body":"now"}\n{"body":"later","delay_level":18}\n'
    sent = pipe("produce", topic, "--json-lines", "--in-flight", 1, "--json", stdin=lines).json
    now, later = sent["first_results"]
    assert (now["offset"], now["delay"]) == (0, None)
    assert (later["queue"], later["offset"], later["delay"]) == (None, None, "2h")


def test_exactly_the_printed_messages_are_committed(ask, topic):
    ask("produce", topic, *range(30))
    group = f"{topic}-group"
    args = ("consume", topic, "-g", group, "--from", "first", "--timeout", 60, "--json", "--max")
    first, second = ask(*args, 7), ask(*args, 23)
    assert sorted(bodies(first) + bodies(second)) == sorted(map(str, range(30)))


def test_an_onlooker_changes_nothing(ask, topic):
    ask("produce", topic, *range(10))
    assert bodies(read_all(ask, topic, 10)) == bodies(read_all(ask, topic, 10))
    assert topic not in ask("lag", "--json").out


def test_tags_choose(ask, topic):
    for tag in "ABC":
        ask("produce", topic, f"of {tag}", "--tag", tag)
    assert bodies(read_all(ask, topic, 2, "--tag", "A || C")) == ["of A", "of C"]


def test_one_queue_from_an_offset_on(ask, topic):
    ask("produce", topic, *range(20), "--in-flight", 1)
    rows = ask("topic", "describe", topic, "--json").json
    queue = f"{rows[1]['broker']}:1"
    args = ("consume", topic, "--queue", queue, "--timeout", 60, "--json", "--max", 3)
    found = ask(*args, "--offset", 7).lines
    assert [(line["queue_id"], line["queue_offset"]) for line in found] == [(1, 7), (1, 8), (1, 9)]
    beyond = ask(*args, "--offset", 11)
    assert (beyond.status, beyond.err) == (
        2,
        "cometmq: --offset 11 is out of range: the queue has 0 to 10\n",
    )


def test_from_a_moment_and_from_the_end(ask, topic):
    ask("produce", topic, "old")
    assert bodies(ask("consume", topic, "--from", "1h", "--max", 1, "--json")) == ["old"]
    late = ask("consume", topic, "--timeout", 0.5)
    assert (late.status, late.out) == (0, "")


def test_too_few_messages_in_time_is_a_failure(ask, topic):
    ask("produce", topic, "x")
    result = ask("consume", topic, "--from", "first", "--max", 2, "--timeout", 2)
    assert (result.status, result.out) == (1, "x\n")
    assert result.err == "cometmq: only 1 of 2 messages arrived in time\n"


@pytest.mark.parametrize(
    ("args", "status", "line"),
    [
        (("consume", "Nowhere"), 1, "no broker has the topic Nowhere"),
        (("consume", "Nowhere", "-g", "g"), 1, "no broker has the topic Nowhere"),
        (
            ("consume", "TBW102", "--queue", "a:0", "-g", "g"),
            2,
            "--queue cannot be combined with --group",
        ),
        (("consume", "TBW102", "--offset", "1"), 2, "--offset needs --queue"),
        (
            ("consume", "TBW102", "--queue", "a:0", "--offset", "1", "--from", "first"),
            2,
            "--offset cannot be combined with --from",
        ),
        (("consume", "TBW102", "--from", "then"), 2, "then is not a time: give first, last, 2026-"),
        (("consume", "TBW102", "--queue", "a:9"), 1, "the topic TBW102 has no queue a:9"),
        (("consume", "TBW102", "--queue", "a"), 2, "--queue a: must be BROKER:NUMBER"),
        (("consume", "TBW102", "--queue", "a:x"), 2, "--queue a:x: must be BROKER:NUMBER"),
        (("produce", "T", "x", "-p", "novalue"), 2, "--property novalue: must be name=value"),
        (("produce", "T", "x", "-p", "=x"), 2, "--property =x: must be name=value"),
        (
            ("produce", "T", "x", "-p", "a=1", "-p", "a=2"),
            2,
            "--property a=2: a is given twice",
        ),
        (("produce", "T/T", "x"), 2, "the name 'T/T' of a topic contains illegal characters"),
        (("produce", "T", "x", "-p", "KEYS=1"), 2, "--property KEYS=1: give --key 1"),
    ],
)
def test_errors_are_one_line(ask, args, status, line):
    ask(*args).assert_refused(status, line)


def test_a_failure_in_the_middle_shows_the_number_sent(ask, topic, tmp_path):
    (tmp_path / "lines").write_text('{"body":"good"}\n{"body":\n')
    result = ask("produce", topic, "-f", tmp_path / "lines", "--json-lines")
    first, second = result.err.splitlines()
    assert (result.status, first) == (1, "cometmq: 1 message stored before the error")
    place = f"cometmq: line 2 of {tmp_path / 'lines'}: not JSON: "
    assert second.startswith(place)


def test_a_message_that_is_refused_ends_the_reading_and_the_count_is_right(ask, pipe, topic):
    lines = [b"%d" % number for number in range(50)]
    after = [b"%d" % number for number in range(10)]
    result = pipe("produce", topic, stdin=b"\n".join([*lines, b"x" * 5_000_000, *after]))
    first, second = result.err.splitlines()
    stored = sum(row["messages"] for row in ask("topic", "describe", topic, "--json").json)
    assert (result.status, stored) == (1, 50)
    assert first == "cometmq: 50 messages stored before the error"
    assert "5000000" in second.replace(",", "")
    nothing = pipe("produce", topic, stdin=b"x" * 5_000_000)
    assert (nothing.status, nothing.out) == (2, "")


def test_the_keys_that_consume_prints_are_accepted():
    kind = message_json.JsonMessage
    line = dict.fromkeys(("tag", "body", "body_base64"))
    line |= {name: 1 for name in kind.__struct_fields__ if name in message_json._IGNORED}
    assert message_json.parse(json.dumps(line).encode(), defaults=Message("T", b"")).tag is None
    assert set(kind.__struct_fields__) <= message_json._KNOWN


@pytest.mark.parametrize("command", [("produce", "T", "x", "--timeout", 2), ("consume", "T")])
def test_a_dead_name_server_is_one_line(call, command):
    port = free_port()
    result = call(*command, "-n", f"127.0.0.1:{port}")
    assert result.status == 1
    assert f"127.0.0.1:{port}" in result.err
    assert "Traceback" not in result.err


def test_a_new_group_starts_where_from_says(ask, topic):
    ask("produce", topic, "old", "--count", 4)
    group = f"{topic}-late"
    args = ("consume", topic, "-g", group, "--max", 1, "--timeout", 5)
    assert ask(*args, "--from", "last").out == ""
    assert ask("lag", group, "-t", topic, "--json").json["lag"] == 0
    ask("produce", topic, "new")
    args = ("consume", topic, "-g", group, "--max", 1, "--timeout", 60)
    again = ask(*args, "--from", "first")
    # The group has offsets, so --from has no effect, and the command says so.
    assert again.out == "new\n"
    assert f"to move it: cometmq group reset {group} {topic} --to first" in again.err


@pytest.mark.parametrize(
    "command", [("consume", "{topic}", "--from"), ("group", "reset", "g", "{topic}", "--to")]
)
def test_a_misspelt_place_is_explained(ask, topic, command):
    words = [word.format(topic=topic) for word in command]
    wrong = ask(*words, "lst")
    wrong.assert_refused(2, "lst is not a time: give first, last, 2026-11-20T10:00Z, 90m (ago) or ")
    assert wrong.err.endswith("; did you mean last?\n")
    assert "did you mean" not in ask(*words, "gestern").err
    assert ask(*words, "now").err.endswith("; did you mean last?\n")
    assert ask(*words, "earliest").err.endswith("; did you mean first?\n")


def test_a_signal_is_not_an_error_of_produce(suite, ask, topic, tmp_path):
    args = ["produce", topic, "x", "--count", "100000", "--rate", "20", "-n", suite.namesrv]
    child = Child("produce", [str(PROGRAM), *args], log_path=tmp_path / "log")
    try:
        read = ("consume", topic, "--from", "first", "--max", 5, "--timeout", 2)
        child.wait_until(lambda: ask(*read).status == 0, 60, "send")
        child._signal(signal.SIGTERM)
        child.wait_until(lambda: child.exit_status is not None, 30, "end")
        assert child.exit_status == 130
        assert re.match(r"cometmq: [\d,]+ messages? stored before the end\n", child.log())
        assert "error" not in child.log()
    finally:
        child.kill()


@pytest.mark.parametrize("lines", [b"", b"\n\n"])
def test_input_without_a_message_is_refused(pipe, topic, lines):
    refused = pipe("produce", topic, stdin=lines)
    refused.assert_refused(2, "nothing was sent: the input has no non-empty line")
