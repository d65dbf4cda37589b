# SPDX-License-Identifier: Apache-2.0
"""Named clusters and accounts: the file, its permissions, and the precedence of sources."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from cometmq.cli.access import ACCESS
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.contexts import Context, changed_contexts, contexts_path, read_contexts


@pytest.fixture
def file(own_settings):
    return contexts_path()


@pytest.fixture
def seen(monkeypatch):
    """Record the name servers and the access of `topic list` instead of connecting."""
    seen = []
    monkeypatch.setattr(
        "cometmq.cli.verbs.topics.ask",
        lambda namesrv, _: seen.append((namesrv, ACCESS.get())) or ([], []),
    )
    for name in ("NAMESRV_ADDR", "COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY", "COMETMQ_TLS"):
        monkeypatch.delenv(name, raising=False)
    return seen


def test_contexts_are_added_used_shown_and_removed(call, file):
    first = call("context", "add", "prod", "-n", "mq:9876", "--tls", "--json").json
    assert first == {"context": "prod", "file": str(file), "current": True}
    added = ("--access-key", "a", "--secret-key", "s3cret", "--namespace", "INST")
    assert call("context", "add", "dev", *added).status == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert call("context", "use", "dev", "--json").json == {"context": "dev", "before": "prod"}
    assert call("context", "use", "-", "--json").json == {"context": "prod", "before": "dev"}
    rows = call("context", "list", "--json").json
    assert [(row["name"], row["current"], row["account"]) for row in rows] == [
        ("dev", False, "a"),
        ("prod", True, None),
    ]
    shown = call("context", "show", "dev")
    assert "s3cret" not in shown.out
    assert "******" in shown.out
    assert call("context", "rm", "prod", "--yes").status == 0
    call("context", "show").assert_refused(2, "no context is in use")
    assert call("context", "add", "staging").status == 0
    refused = call("context", "use", "stagign")
    refused.assert_refused(2, "there is no context stagign; did you mean staging?")


def test_options_may_stand_between_a_group_and_its_command(call, seen):
    assert call("topic", "-n", "a:1", "--json", "list").json == []
    assert [namesrv for namesrv, _ in seen] == ["a:1"]
    assert call("topic", "-n", "a:1", "list", "-n", "b:2").status == 0
    assert seen[1][0] == "b:2", "the one nearest to the command counts"


def test_a_context_is_replaced_only_on_request_and_removed_only_if_confirmed(call, file):
    assert call("context", "add", "prod", "-n", "mq:9876").status == 0
    call("context", "add", "prod", "-n", "x:1").assert_refused(2, "the context prod exists")
    assert call("context", "add", "prod", "-n", "x:1", "--replace").status == 0
    assert read_contexts(file).contexts["prod"].namesrv == "x:1"
    assert call("context", "rm", "prod").status == 2
    assert "prod" in read_contexts(file).contexts


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--secret-key", "s"), "--secret-key and --security-token belong to --access-key"),
        (("--access-key", "a", "--credentials", "f"), "--access-key and --credentials are two"),
        (("--credentials", "/nowhere/tools.yml"), "/nowhere/tools.yml"),
        (("-n", "host:port"), ""),
    ],
)
def test_a_context_that_cannot_work_is_not_stored(call, file, options, line):
    refused = call("context", "add", "prod", *options)
    assert refused.status == 2
    assert line in refused.err
    assert not file.exists()


def test_the_secret_key_is_read_from_standard_input(call, file, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert call("context", "add", "prod", "--access-key", "a").status == 0
    assert read_contexts(file).contexts["prod"].secret_key == "from a pipe"


@pytest.mark.parametrize("name", ["", "-x", "a b", "../a", "<b>", "\x1b[31m", "x" * 65, "ä"])
def test_names_that_a_shell_or_terminal_could_misread_are_refused(call, name):
    refused = call("context", "add", "--", name) if name else call("context", "add", name)
    assert refused.status == 2
    assert "\x1b" not in refused.err


def test_a_file_that_others_can_read_is_refused_with_the_remedy(call, file, seen):
    assert call("context", "add", "prod", "-n", "mq:9876").status == 0
    file.chmod(0o640)
    for command in (("context", "list"), ("topic", "list")):
        refused = call(*command)
        assert refused.status == 2
        assert f"(mode 0640): chmod 600 {file}" in refused.err
    assert seen == []


@pytest.mark.parametrize("content", ["[]", "{", '{"contexts": {"a": {"namesrw": "x"}}}', "\xff"])
def test_a_broken_file_is_named_and_kept(call, file, content):
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="latin-1")
    file.chmod(0o600)
    refused = call("context", "add", "prod")
    assert refused.status == 2
    assert f"{file} has no contexts: " in refused.err
    assert file.read_text(encoding="latin-1") == content
    assert call("explain", "2").status == 0, "commands without a cluster do not read it"


@pytest.mark.parametrize(
    ("args", "variables", "namesrv", "account"),
    [
        ((), {}, "prod:1", "prodKey"),
        (("-n", "x:1"), {}, "x:1", "prodKey"),
        ((), {"NAMESRV_ADDR": "env:1"}, "env:1", "prodKey"),
        ((), {"COMETMQ_CONTEXT": "dev", "NAMESRV_ADDR": "env:1"}, "dev:1", ""),
        (("--context", "dev"), {"NAMESRV_ADDR": "env:1"}, "dev:1", ""),
        (("--context", "dev", "-n", "x:1"), {}, "x:1", ""),
        ((), {"COMETMQ_ACCESS_KEY": "e", "COMETMQ_SECRET_KEY": "s"}, "prod:1", "e"),
        (("--context", "prod"), {"COMETMQ_ACCESS_KEY": "e"}, "prod:1", "prodKey"),
        (("--access-key", "o", "--secret-key", "s"), {}, "prod:1", "o"),
    ],
)
@pytest.mark.parametrize("is_before", [False, True])
def test_options_win_over_the_context_and_it_over_defaults(
    call, seen, monkeypatch, args, variables, namesrv, account, is_before
):
    keys = ("--access-key", "prodKey", "--secret-key", "prodSecret")
    assert call("context", "add", "prod", "-n", "prod:1", *keys).status == 0
    assert call("context", "add", "dev", "-n", "dev:1", "--tls").status == 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = call(*args, "topic", "list") if is_before else call("topic", "list", *args)
    assert done.status == 0, done.err
    [(used, access)] = seen
    assert (used, access.access_key) == (namesrv, account)
    assert access.is_tls is (namesrv == "dev:1" or "dev" in args)


def test_names_are_relative_to_the_namespace_of_the_context(call, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "cometmq.cli.consuming.lag._group_view", lambda _, **facts: asked.append(facts)
    )
    monkeypatch.setattr(
        "cometmq.cli.consuming.lag.partial",
        lambda view, *_, **facts: lambda: lambda: asked.append(facts),
    )
    assert call("context", "add", "prod", "--namespace", "INST").status == 0
    assert call("lag", "billing", "-t", "orders").status == 0
    assert asked[-1]["topic"] == "INST%orders"


def test_two_commands_that_change_the_file_at_once_lose_nothing(file):
    def add(number):
        with changed_contexts(file) as found:
            found.contexts[f"c{number}"] = Context(namesrv=f"h:{number}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
    assert len(read_contexts(file).contexts) == 40
    assert json.loads(file.read_text())["contexts"]["c7"] == {"namesrv": "h:7"}


def test_a_change_that_fails_leaves_the_file_as_it_was(file):
    with changed_contexts(file) as found:
        found.contexts["a"] = Context()

    def change():
        with changed_contexts(file) as found:
            found.contexts.clear()
            found.select("missing")

    with pytest.raises(SettingsError):
        change()
    assert list(read_contexts(file).contexts) == ["a"]


def test_validate_connects_and_names_what_is_down(call, suite):
    assert call("context", "add", "here", "-n", suite.namesrv).status == 0
    assert call("context", "validate", "--connect", "--json").json["brokers"]
    assert call("context", "add", "down", "-n", "127.0.0.1:1").status == 0
    assert call("context", "validate", "down").status == 0
    refused = call("context", "validate", "down", "--connect")
    assert refused.status == 1
    assert "127.0.0.1:1" in refused.err


def test_a_prompt_shows_the_context_in_use(call, monkeypatch):
    assert call("context", "prompt")[:2] == (0, "")
    assert call("context", "add", "prod", "-n", "mq1:9876").status == 0
    assert call("context", "use", "prod").status == 0
    assert call("context", "prompt").out == "prod\n"
    monkeypatch.setenv("COMETMQ_CONTEXT", "other")
    assert call("context", "prompt").out == "other\n"


def test_a_linked_file_of_contexts_stays_linked(file, tmp_path):
    target = tmp_path / "dotfiles" / "contexts.json"
    target.parent.mkdir()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)
    with changed_contexts(file) as found:
        found.contexts["prod"] = Context(namesrv="h:1")
    assert file.is_symlink()
    assert read_contexts(target).contexts["prod"].namesrv == "h:1"
