# SPDX-License-Identifier: Apache-2.0
"""`definitions` against a running suite."""

import asyncio
import json

from .heartbeats import heartbeat


def test_definitions_are_exported_compared_and_imported(ask, topic, tmp_path):
    file = tmp_path / "cluster.json"
    assert ask("group", "create", f"G{topic}", "--retries", 3).status == 0
    assert ask("definitions", "export", file).status == 0
    found = json.loads(file.read_bytes())
    assert found == {**json.loads(ask("definitions", "export").out),
                     "exportedAt": found["exportedAt"]}  # fmt: skip
    (mine,) = [it for it in found["topics"] if it["topicName"] == topic]
    assert (mine["readQueueNums"], mine["perm"]) == (2, 6)
    assert "brokers" not in mine, "every master has it"
    assert ask("definitions", "export", file).status == 2, "it asks before it overwrites"
    assert "already like this" in ask("definitions", "import", file, "--yes").err
    mine["readQueueNums"] = mine["writeQueueNums"] = 5
    found["groups"].append({"groupName": f"new-{topic}"})
    file.write_text(json.dumps(found))
    dry = ask("definitions", "import", file, "--dry-run", "--json").json
    assert {it.partition(" at ")[0] for it in dry["changes"]} == {
        f"topic {topic}", f"group new-{topic}",
    }  # fmt: skip
    assert ask("topic", "describe", topic, "--json").json[0]["queue"] == 0
    assert len(ask("topic", "describe", topic, "--json").json) == 2
    assert ask("definitions", "import", file).status == 2, "it asks before it changes"
    done = ask("definitions", "import", file, "--yes", "--json").json
    assert {it["outcome"] for it in done} == {"done"}
    assert len(ask("topic", "describe", topic, "--json").json) == 5
    assert ask("group", "describe", f"new-{topic}", "--json").json["retries"] == 16


def test_a_group_with_a_control_character_is_written_out_and_deleted(ask, suite, topic):
    """The byte 9B begins a command to a terminal, and brokers accept it in the names of groups."""
    group = f"\x9b31m{topic}"

    async def register():
        await (await heartbeat(suite.broker, "c", group)).close()

    asyncio.run(register())
    exported = ask("definitions", "export").out
    assert "\x9b" not in exported
    assert group in [it["groupName"] for it in json.loads(exported)["groups"]]
    deleted = ask("group", "delete", group, "--yes", "--json").json
    assert deleted["topics_kept"] == [f"%RETRY%{group}"], "they may hold messages"
    assert ask("topic", "delete", f"%RETRY%{group}", "--yes").status == 0
    asyncio.run(register())
    deleted = ask("group", "delete", group, "--topics", "--yes", "--json").json
    assert deleted["topics_deleted"] == [f"%RETRY%{group}"], "a stranger's group can be removed"
    asyncio.run(register())
    where = ("-c", "DefaultCluster", "-g", group)
    assert "delete topic [%RETRY%" in ask("deleteSubGroup", *where).out
    assert f"%RETRY%{group}" not in ask("topicList", "--json").json


def test_nothing_is_changed_if_anything_is_refused(ask, topic, tmp_path):
    file = tmp_path / "cluster.json"
    text = {"format": "cometmq definitions", "version": 1}
    fewer = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1}
    file.write_text(json.dumps({**text, "topics": [fewer], "groups": [{"groupName": f"N{topic}"}]}))
    refused = ask("definitions", "import", file, "--yes")
    assert refused.status == 1
    assert "consumers would lose queues" in refused.err
    assert "1 definition refused" in refused.err
    assert ask("group", "describe", f"N{topic}").status == 1
    assert ask("definitions", "import", file, "--yes", "--skip-refused").status == 0
    assert ask("group", "describe", f"N{topic}").status == 0
    file.write_text(json.dumps({**text, "version": 7}))
    ask("definitions", "import", file, "--yes").assert_refused(
        2, f"{file}: the file has the version 7"
    )


def test_accounts_need_their_secret_keys(ask, topic, tmp_path):
    file, keys = tmp_path / "cluster.json", tmp_path / "keys"
    keys.write_text("seller short\n")
    text = {"format": "cometmq definitions", "version": 1}
    file.write_text(json.dumps({**text, "accounts": [{"accessKey": "seller-key"}]}))
    refused = ask("definitions", "import", file, "--yes")
    assert refused.status == 1
    assert "the broker does not tell its accounts" in refused.err
    refused = ask("definitions", "import", file, "--secrets", keys)
    refused.assert_refused(2, f"{file}: line 1 of {keys}")
