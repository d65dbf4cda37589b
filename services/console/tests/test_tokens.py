# SPDX-License-Identifier: Apache-2.0
"""Tokens and their sessions follow the file while the console runs."""

import asyncio
import hashlib
from pathlib import Path

import httpx2
import pytest
import structlog
from structlog.testing import capture_logs

from cometmq.console.app import ConsoleApp
from cometmq.console.login.roles import Role, User
from cometmq.console.login.tokens import Tokens, own_token
from cometmq.console.settings import ConsoleSettings
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

from .desks import hidden

EYE, OPS = "viewer-token-0123456789", "operator-token-0123456789"
DEADLINE_S = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"eye viewer {EYE}\nops operator {OPS}\n")
    return path


def settle(tokens: Tokens) -> bool:
    """Refresh until a change has taken effect; return whether the tokens differ."""
    return [tokens.refresh(), tokens.refresh()][-1]


def test_a_changed_file_counts_once_it_has_settled(file):
    tokens = Tokens(file, "tokenFile")
    assert not settle(tokens)
    file.write_text(f"eye admin sha256:{hashlib.sha256(EYE.encode()).hexdigest()}\n")
    assert not tokens.refresh()
    assert tokens.find(OPS) is not None
    assert tokens.refresh()
    assert tokens.find(OPS) is None
    assert tokens.find(EYE) == User("eye", Role.ADMIN, "token")
    file.write_text("")
    assert settle(tokens)
    assert tokens.find(EYE) is None


@pytest.mark.parametrize("text", ["eye viewer\n", "eye viewer short\n", b"\xff\xfe\n", None])
def test_a_file_that_cannot_be_used_changes_nothing(file, text):
    tokens = Tokens(file, "tokenFile")
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert not tokens.refresh()
    with pytest.raises(SettingsError, match=str(file)):
        tokens.refresh()
    assert not tokens.refresh()  # it is reported once
    assert tokens.find(EYE) is not None


def changed(site, text):
    """Write the tokens of a site anew."""
    site.tokens_file.write_text(text)
    assert settle(site.tokens)


async def test_a_session_ends_with_its_token_and_follows_its_role(sites):
    site = sites()
    await site.log_in("operator")
    assert "ops" in (await site.web.get("/login")).text
    changed(site, f"ops viewer {OPS}\n")
    assert (await site.web.get("/audit")).status_code == 403
    changed(site, f"ops operator another-{OPS}\n")
    page = await site.web.get("/audit")
    assert page.status_code in {302, 303, 401}
    changed(site, f"ops operator {OPS}\n")
    assert (await site.web.get("/audit")).status_code == page.status_code  # it has ended


def assert_private(folder):
    """Check that only the user of the console may read the history."""
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {it.name: it.stat().st_mode & 0o777 for it in folder.iterdir()}
    assert "history.db" in modes
    assert set(modes.values()) == {0o600}


async def test_a_running_console_reads_the_file_again(file, tmp_path):
    given = {
        "namesrvAddr": "127.0.0.1:1", "listenPort": "0", "bindAddress": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "console"), "tokenFile": str(file),
    }  # fmt: skip
    loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    app = ConsoleApp(loaded, log=NO_LOG, clock=SystemClock())
    await app.start()
    try:
        assert_private(tmp_path / "console")
        async with httpx2.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as web:
            page = await web.get("/login")
            form = {"csrf": hidden(page, "csrf"), "token": OPS, "next": "/"}
            assert (await web.post("/login", data=form)).status_code == 303
            assert (await web.get("/audit")).status_code == 200
            file.write_text(f"eye viewer {EYE}\n")
            async with asyncio.timeout(DEADLINE_S):
                while (await web.get("/audit")).status_code == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        await app.stop()


async def test_the_log_and_not_the_login_page_says_where_the_token_is(tmp_path):
    folder = tmp_path / "console"
    given = {
        "namesrvAddr": "127.0.0.1:1", "listenPort": "0", "bindAddress": "127.0.0.1",
        "storePathRootDir": str(folder),
    }  # fmt: skip
    loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    with capture_logs() as events:
        app = ConsoleApp(loaded, log=structlog.get_logger(), clock=SystemClock())
        await app.start()
    try:
        async with httpx2.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as web:
            text = (await web.get("/login")).text
    finally:
        await app.stop()
    assert "the last word in the file <code>token</code>" in text
    assert str(tmp_path) not in text
    (ready,) = [event for event in events if event["event"] == "token.ready"]
    assert ready["path"] == str(folder / "token")


async def test_the_line_of_the_file_is_as_good_as_its_token(sites):
    site = sites()
    page = await site.web.get("/login")
    form = {"csrf": hidden(page, "csrf"), "next": "/"}
    wrong = await site.web.post("/login", data={**form, "token": "root admin no-such-token-012"})
    assert wrong.status_code == 401
    assert "give the third word of its line in the token file" in wrong.text
    line = "root  admin admin-token-0123456789\n"
    assert (await site.web.post("/login", data={**form, "token": line})).status_code == 303


async def test_the_content_of_the_generated_file_is_as_good_as_its_token(sites, tmp_path):
    site = sites()
    content = own_token(tmp_path / "own").read_text()
    changed(site, content)

    async def asked(token):
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        return await site.web.get("/audit", headers=headers)

    for token in (content.strip(), content.split()[-1]):
        assert (await asked(token)).status_code == 200
    refused = await asked("admin")
    assert refused.status_code == 401
    assert refused.json()["text"].startswith("the token is not valid: give the third word")
