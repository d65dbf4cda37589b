# SPDX-License-Identifier: Apache-2.0
"""Help pages fit on a screen and have an example; shells complete names."""

import asyncio
import os
import re
import shlex
import subprocess

import pytest
from typer.testing import CliRunner

from cometmq.cli.hints.completion import complete_names
from cometmq.cli.lazy import load_command
from cometmq.cli.main import AREAS, COMMANDS, app
from cometmq.cli.mqadmin import AREAS as WORDS
from cometmq.cli.mqadmin import COMMANDS as MQADMIN
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

from .heartbeats import heartbeat

LINES_MAX = 24
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


def help_on(*words):
    return (
        CliRunner().invoke(app, ["help", *words], env={"COLUMNS": "80"}, prog_name="cometmq").output
    )


def assert_fits(path, page):
    lines = page.splitlines()
    assert len(lines) <= LINES_MAX, path
    assert max(map(len, lines)) <= 80, path


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_page_fits_on_a_screen_and_names_every_option(name):
    shared = help_on("options")
    for path, command in nodes((name,), load_command(name, COMMANDS[name])):
        page = page_of(*path)
        assert_fits(path, page)
        described, _, named = page.partition("ptions:\n")[2].partition("\n  And ")
        if not named:
            described, _, named = "", "", page.partition("ptions:\n  And ")[2]
        named = named.partition(": cometmq help options")[0].partition(";")[0]
        for option in (it for it in command.params if it.opts[0].startswith("-")):
            names = [*option.opts, *option.secondary_opts]
            if option.hidden:
                assert max(names, key=len) in shared, (path, names)
            elif f"{option.opts[0]} " in described or f"{option.opts[0]}," in described:
                assert all(it in described for it in names), (path, names)
            else:
                assert min(option.opts, key=len) in named.replace(",", " ").split(), (path, names)
                assert all(it in shared for it in names if it != "--namesrvAddr"), (path, names)


def test_the_program_uses_all_columns_of_a_terminal():
    """Typer's own runner forces a width, so the pages above prove nothing about the program."""
    env = {**os.environ, "COLUMNS": "80"}  # noqa: TID251  # of a child
    done = subprocess.run(
        [PROGRAM, "produce", "-h"], capture_output=True, env=env, check=True, timeout=120
    )
    assert done.stdout.decode() == page_of("produce")


def test_the_first_page_those_of_areas_and_that_of_shared_options_fit():
    assert_fits((), page_of())
    for word in ("options", *AREAS.values()):
        assert_fits((word,), help_on(word))


def test_the_page_of_mqadmin_names_each_command_and_others_describe_them():
    names = page_of("mqadmin").partition("\nCommands, ")[2].partition("\n")[2].split()
    areas = {area: [it for it in MQADMIN if MQADMIN[it].panel == at] for at, area in WORDS.items()}
    assert names == [word for area, found in areas.items() for word in (area, *found)]
    assert set(names) - set(areas) == set(MQADMIN)
    everything = " ".join(help_on("mqadmin", "all").split())
    for area, found in areas.items():
        page = help_on("mqadmin", area)
        assert_fits(("help", "mqadmin", area), page)
        for name in found:
            line = f" {name} {MQADMIN[name].help}"
            assert line in " ".join(page.split()), name
            assert line in everything, name


def test_the_first_page_names_each_command_and_each_area_describes_its_own():
    names = page_of().partition("\nCommands:\n")[2].partition("  What they do:")[0]
    assert names.replace(",", "").split() == [
        word
        for panel, area in AREAS.items()
        for word in (area, *(name for name in OWN_AND_MQADMIN if COMMANDS[name].panel == panel))
    ]
    everything = help_on("all")
    for panel, area in AREAS.items():
        page = help_on(area)
        assert page.splitlines()[0] == f"{panel}:"
        rows = [line.split(maxsplit=1) for line in page.splitlines()[1:]]
        assert rows == [
            [name, COMMANDS[name].help] for name in OWN_AND_MQADMIN if COMMANDS[name].panel == panel
        ]
        assert f"{panel}:" in everything
        for name, text in rows:
            assert re.search(rf"^  {name} +{re.escape(text)}$", everything, re.MULTILINE), name


def test_no_area_has_the_name_of_a_command():
    assert not {*AREAS.values(), "all", "options"} & {it.lower() for it in COMMANDS}


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
