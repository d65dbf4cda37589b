# SPDX-License-Identifier: Apache-2.0
"""`topic analyse` and `topic clone` against a running suite."""


def test_a_topic_is_analysed(ask, topic):
    for number in range(6):
        ask("produce", topic, "x" * (number + 1), "--key", f"k{number % 2}", "--tag", "even")
    found = ask("topic", "analyse", topic, "--json").json
    assert (found["messages"], found["figures"]["messages"], found["ended"]) == (6, 6, "")
    assert [it["name"] for it in found["figures"]["keys"]["top"]] == ["k0", "k1"]
    shown = ask("topic", "analyse", topic, "--sample", 2, "--since", "1h").out
    assert "a sample of 2" in shown
    assert "Producer" in shown
    assert ask("topic", "analyse", "Missing").status == 1
    assert ask("topic", "analyse", topic, "--sample", 0).status == 2
    assert ask("topic", "analyse", topic, "--since", "soon").status == 2


def test_a_topic_is_cloned(ask, topic):
    dry = ask("topic", "clone", topic, f"{topic}C", "--dry-run")
    assert f"create the topic {topic}C" in dry.out
    assert ask("topic", "describe", f"{topic}C").status == 1
    (row,) = ask("topic", "clone", topic, f"{topic}C", "--json").json
    assert (row["read_queues"], row["write_queues"], row["permission"]) == (2, 2, "rw")
    assert ask("topic", "clone", topic, f"{topic}C").status == 1
    assert ask("topic", "clone", "Missing", f"{topic}D").status == 1
