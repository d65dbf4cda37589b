# SPDX-License-Identifier: Apache-2.0
"""All errors that users of the client may need to catch can be imported from `cometmq.client`."""

import ast
import re
from pathlib import Path

import cometmq.client
from cometmq.client import errors as client_errors
from cometmq.remoting import errors
from cometmq.remoting.errors import CommandError, TransportError

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = set(cometmq.client.__all__)


def raised(*patterns: str) -> set[str]:
    """Return the names of the exception classes that are raised in these files."""
    found = set()
    for path in [path for pattern in patterns for path in ROOT.glob(pattern)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.exc if isinstance(node, ast.Raise) else None
            called = value.func if isinstance(value, ast.Call) else value
            found |= {called.id} if isinstance(called, ast.Name) else set()
    return found


def subclasses(module: object, base: type[Exception]) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base)
    }


def test_errors_of_the_client_itself_are_public() -> None:
    own = subclasses(client_errors, client_errors.ClientError)
    assert len(own) > 5
    assert own - PUBLIC == set()


def test_errors_of_the_connection_are_public() -> None:
    names = subclasses(errors, TransportError)
    assert "RequestTimeout" in names
    assert names - PUBLIC == set()


def test_refusals_of_brokers_and_name_servers_are_public() -> None:
    refusals = subclasses(errors, CommandError) & raised("services/*/src/**/*.py")
    assert {"SystemBusy", "NoPermission"} <= refusals
    assert refusals - PUBLIC == set()


def test_guides_name_one_place_to_import_errors_from() -> None:
    pages = [*ROOT.glob("docs/guides/*.md"), *ROOT.glob("libs/client/examples/*.py")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    assert [name for name, text in texts.items() if "cometmq.remoting.errors" in text] == []


def test_errors_that_the_clients_guide_names_are_public() -> None:
    text = (ROOT / "docs/guides/client.md").read_text(encoding="utf-8")
    known = subclasses(errors, errors.CometError) | subclasses(client_errors, errors.CometError)
    named = set(re.findall(r"`(\w+)`", text)) & known
    assert len(named) > 3
    assert named - PUBLIC == set()
