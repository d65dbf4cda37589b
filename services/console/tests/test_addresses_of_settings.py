# SPDX-License-Identifier: Apache-2.0
"""The pages show the addresses that a console is given, so none may contain a password."""

import pytest

from cometmq.console.settings import ConsoleSettings
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import load

NAMES = ["prometheusUrl", "oidcIssuer", "docsUrl", "publicUrl"]


@pytest.mark.parametrize("name", NAMES)
def test_an_address_with_a_login_is_refused_without_showing_it(name):
    with pytest.raises(SettingsError) as caught:
        load(ConsoleSettings, prefix="X", env={}, cli={name: "http://me:hunter2@host:9090"})
    text = str(caught.value)
    assert text.startswith(f"{name}=http://******@host:9090: must be ")
    assert "such as" in text or "without a login" in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", ["", "https://mq.example.org", "http://127.0.0.1:9090"])
def test_other_addresses_are_accepted(name, given):
    found = load(ConsoleSettings, prefix="X", env={}, cli={name: given}).value
    assert given in {found.prometheus_url, found.oidc_issuer, found.docs_url, found.public_url}


@pytest.mark.parametrize("name", NAMES[:3])
def test_paths_are_accepted_except_in_the_public_address(name):
    load(ConsoleSettings, prefix="X", env={}, cli={name: "https://host/a/@b/c"})
    with pytest.raises(SettingsError, match="publicUrl"):
        load(ConsoleSettings, prefix="X", env={}, cli={"publicUrl": "https://host/a"})
