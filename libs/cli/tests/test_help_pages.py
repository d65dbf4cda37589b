# SPDX-License-Identifier: Apache-2.0
"""Help pages describe commands and have an example; shells complete names."""

import asyncio
import os
import re
import shlex
import subprocess

import pytest
from typer.testing import CliRunner

from cometmq.cli.hints import complete_names
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app
from cometmq.cli.mqadmin import COMMANDS as MQADMIN
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

from .heartbeats import heartbeat

OWN_AND_MQADMIN = [name for name in COMMANDS if name not in MQADMIN]
OWN = [name for name in OWN_AND_MQADMIN if name != "mqadmin"]


def nodes(path, command):
    """Yield all commands and groups from this one on."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from nodes((*path, name), child)


def paths(path, command):
    return [at for at, found in nodes(path, command) if not hasattr(found, "commands")]


def page_of(*path):
    return (
        CliRunner()
        .invoke(app, [*path, "--help"], env={"COLUMNS": "80"}, prog_name="cometmq")
        .output
    )


def test_the_first_page_describes_each_command_and_that_of_mqadmin_its_own():
    for page, names in ((page_of(), OWN_AND_MQADMIN), (page_of("mqadmin"), list(MQADMIN))):
        rows = dict(re.findall(r"^  (\w[\w-]*) +(\S.*)$", page, re.MULTILINE))
        for name in names:
            assert COMMANDS[name].help.startswith(rows[name]), name


def test_the_page_of_a_command_names_its_options_and_that_of_a_group_its_verbs():
    page = page_of("topic", "create")
    assert all(it in page for it in ("--queues", "--dry-run", "--namesrv", "EXAMPLE"))
    assert "Create a topic; fails if a broker already has it (see alter)." in page_of("topic")


@pytest.mark.parametrize("name", OWN)
def test_each_help_page_has_an_example(name):
    for path in paths((name,), load_command(name, COMMANDS[name])):
        page = page_of(*path)
        assert "EXAMPLE" in page, path
        example = page.partition("EXAMPLE")[2].splitlines()[1]
        assert example.startswith(f"    cometmq {' '.join(path)}".rstrip()), example


def test_the_examples_of_a_page_parse():
    for name in OWN:
        for path in paths((name,), load_command(name, COMMANDS[name])):
            page = CliRunner().invoke(app, [*path, "-h"], prog_name="cometmq").output
            block = page.partition("EXAMPLE")[2].partition("\n\n")[0].splitlines()[1:]
            for line in filter(None, block):
                words = shlex.split(line)
                command = load_command(words[1], COMMANDS[words[1]])
                for word in words[2:3]:
                    command = getattr(command, "commands", {}).get(word, command)
                options = {it for param in command.params for it in param.opts}
                options |= {it for param in command.params for it in param.secondary_opts}
                root = {"-n", "--credentials", "--tls", "--access-key", "--json"}
                end = next((at for at, it in enumerate(words) if it in {"|", ">", "&&", "<"}), None)
                used = {it.partition("=")[0] for it in words[:end] if it.startswith("--")}
                assert used <= options | root, line


def complete(*words, env):
    settings = {
        "_COMETMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("cometmq", *words)),
        "COMP_CWORD": str(len(words)),
    }
    everything = {**os.environ, **env, **settings}  # noqa: TID251  # of a child
    done = subprocess.run(
        [str(PROGRAM)], env=everything, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout.split()


def test_shells_complete_contexts_topics_and_groups(call, ask, suite, topic):
    assert call("context", "add", "here", "-n", suite.namesrv).status == 0
    assert ask("group", "create", f"{topic}_group").status == 0
    config = {"XDG_CONFIG_HOME": str(os.getenv("XDG_CONFIG_HOME"))}
    assert "here" in complete("context", "use", "he", env=config)
    soon = 60  # a shell waits for a second, in which a machine under load has no answer
    wait_until(lambda: topic in complete("consume", topic[:4], env=config), soon, "a topic")

    async def register():
        await (await heartbeat(suite.broker, "c", f"{topic};$(id)")).close()

    asyncio.run(register())
    env = {"NAMESRV_ADDR": suite.namesrv}
    group = f"{topic}_group"
    wait_until(lambda: complete("group", "describe", topic, env=env) == [group], soon, "plain ones")


def test_a_dead_cluster_completes_nothing():
    assert complete("consume", "x", env={"NAMESRV_ADDR": "127.0.0.1:1"}) == []


def test_commands_without_names_are_left_as_they_are():
    command = load_command("cluster", COMMANDS["cluster"])
    complete_names(command)
    assert all(param.name not in {"topic", "group"} for param in command.params)
