# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/client-api.md from the signatures and docstrings of public names."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import griffe

from .markdown import code, notice, table

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("libs/client/src", "libs/remoting/src")
PACKAGE: Final = "cometmq.client"
SYNC: Final = "cometmq.client.sync"
TESTING: Final = "cometmq.client.testing"
OPTIONS_PAGE: Final = "client-options.md"

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Producers": ("Producer", "TransactionProducer", "Transaction"),
    "Consumers": ("PushConsumer", "LitePullConsumer", "PullConsumer", "ScheduledPull"),
    "Administration": ("AdminClient", "END", "QueueLag", "SubscriptionGroupConfig", "TopicConfig"),
    "Messages": ("Message", "MessageExt", "DamagedMessage", "MessageQueue"),
    "Results": (
        "SendResult", "TransactionSendResult", "PullResult", "ProducerStats", "ConsumerStats",
    ),
    "Listeners": ("Listener", "ConsumeResult", "OrderlyListener", "OrderlyResult"),
    "Subscriptions, accounts and TLS": ("MessageSelector", "SessionCredentials", "TlsSettings"),
    "Hooks": (
        "SendHook", "SendContext", "ForbiddenHook", "ConsumeHook", "ConsumeContext", "EndHook",
        "EndContext",
    ),
    "Functions": (
        "by_hash", "by_random", "is_request", "reply_message", "on_signal", "until_signal",
    ),
}  # fmt: skip
"""Heading -> names. Errors, options and enumerations are assigned to sections automatically."""

CLASSES: Final = frozenset(name for names in SECTIONS.values() for name in names)

SERVERS: Final = {
    "BrokerAdmin": "cometmq.client.admin.broker.BrokerAdmin",
    "NamesrvAdmin": "cometmq.client.admin.namesrv.NamesrvAdmin",
    "ClientAdmin": "cometmq.client.admin.ClientAdmin",
}
"""Classes that are not exported because only the clients create them."""

HIDDEN: Final = frozenset(
    {"INNER", "KIND", "OPTIONS", "attached", "check_outside_calls", "note_failure"}
)
"""Public members that applications do not need."""

NAMES_MAX: Final = 12
"""Maximum number of members that the table of other types shows for each type."""

ENUMS: Final = frozenset({"StrEnum", "IntEnum", "Enum", "NamedNumber"})


def page() -> str:
    """Return the page; raise ValueError if an exported name has no section."""
    loader = griffe.GriffeLoader(search_paths=[ROOT / source for source in SOURCES])
    client = loader.load(PACKAGE)
    loader.load("cometmq.remoting")
    loader.resolve_aliases(external=False, implicit=False)
    names = {str(name): _resolved(client[str(name)]) for name in client.exports or ()}
    lines = ["# API of the Python client", "", notice("client-api"), "", *_introduction()]
    for heading, members in SECTIONS.items():
        lines += ["", f"## {heading}"]
        for name in members:
            lines += _object(name, names.pop(name))
    lines += ["", "## Requests to one server, and the `admin` of a client"]
    for name, path in SERVERS.items():
        lines += _object(name, _resolved(loader.modules_collection[path]))
    lines += ["", "## Enumerations"]
    for name in [name for name, found in names.items() if _has_base(found, ENUMS)]:
        lines += _object(name, names.pop(name))
    options = [name for name in names if name.endswith("Options")]
    lines += ["", "## Options", "", *(_option(name, names.pop(name)) for name in options)]
    errors = {name: found for name, found in names.items() if name in _errors(names)}
    lines += ["", "## Errors", "", *_error_table(errors)]
    names = {name: found for name, found in names.items() if name not in errors}
    if names:
        raise ValueError(f"no section of docs/generators/client_api.py has {', '.join(names)}")
    lines += _module(SYNC, client["sync"])
    lines += _module(TESTING, client["testing"])
    lines += ["", "## Other types", "", *_other_types(lines, loader, {*errors, *options})]
    return "\n".join(lines) + "\n"


def _introduction() -> list[str]:
    return [
        "All names that `cometmq.client` exports, and the objects that clients return. How to use",
        "them: [the guide](../guides/client.md). Every client is an asynchronous context manager:",
        "`async with Producer(...) as producer:` calls `start` and `close`. Names ending in `_ms`",
        f"are in milliseconds. Blocking clients: [{code(SYNC)}](#cometmqclientsync); a cluster in",
        f"memory for tests: [{code(TESTING)}](#cometmqclienttesting).",
    ]


def _resolved(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


# Objects


def _object(name: str, found: griffe.Object) -> Iterator[str]:
    """Yield the lines for a class, a function or a type."""
    yield from ("", f"### {name}")
    if isinstance(found, griffe.Function):
        yield from ("", "```text", _signature(found, name), "```")
    elif isinstance(found, griffe.Attribute):
        yield from ("", "```text", f"{name} = {found.value}", "```")
    if found.docstring is not None:
        yield from ("", found.docstring.value)
    if isinstance(found, griffe.Class):
        yield from _class(name, found)


def _class(name: str, found: griffe.Class) -> Iterator[str]:
    begin = found.all_members.get("__init__")
    if begin is not None and begin.docstring is not None:
        yield from ("", "```text", _signature(_function(begin), name), "```")
        yield from ("", begin.docstring.value)
    members = [*_members(found)]
    if members:
        yield ""
    for member in members:
        yield from _member(found, member)
    for base in found.mro():
        if base.name in CLASSES:
            yield f"- and the members of {code(base.name)}"


def _members(found: griffe.Class) -> Iterator[griffe.Object]:
    """Yield a class's public members, including those inherited from bases without a section."""
    for name, member in {**found.members, **found.inherited_members}.items():
        if name.startswith("_") or name in HIDDEN:
            continue
        target = _resolved(member)
        if target.parent != found and target.parent is not None and target.parent.name in CLASSES:
            continue  # documented in the section of that class
        is_assigned = isinstance(target, griffe.Attribute) and target.docstring is None
        if is_assigned and target.labels == {"instance-attribute"} and not _has_fields(found):
            continue  # in a method
        yield target


def _member(owner: griffe.Class, member: griffe.Object) -> Iterator[str]:
    if isinstance(member, griffe.Function):
        text = _signature(member)
    elif isinstance(member, griffe.Attribute):
        is_value = _has_base(owner, ENUMS) and "property" not in member.labels
        typed = "" if member.annotation is None or is_value else f": {member.annotation}"
        text = f"{member.name}{typed}"
        if member.value is not None and "property" not in member.labels:
            text += f" = {member.value}"
    else:
        return
    yield f"- `{text}`"
    if member.docstring is not None:
        yield from ("  " + line if line else "" for line in member.docstring.value.splitlines())


def _signature(function: griffe.Function, name: str = "") -> str:
    """Return a call with its types; class methods and `__init__` get the name of their class."""
    text = function.signature(name=name or function.name)
    if name and function.name == "__init__":
        text = text.removesuffix(" -> None")
    return f"async {text}" if "async" in function.labels else text


def _function(member: griffe.Object | griffe.Alias) -> griffe.Function:
    target = _resolved(member)
    assert isinstance(target, griffe.Function)
    return target


def _has_base(found: griffe.Object, names: frozenset[str]) -> bool:
    if not isinstance(found, griffe.Class):
        return False
    return any(str(base).rpartition(".")[2] in names for base in found.bases)


def _has_fields(found: griffe.Class) -> bool:
    """Return whether a class is a struct, whose fields are its annotated names."""
    return any(_has_base(one, frozenset({"Struct"})) for one in (found, *found.mro()))


# Options and errors


def _option(name: str, found: griffe.Object) -> str:
    about = "" if found.docstring is None else f": {_first_line(found)}"
    return f"- [{code(name)}]({OPTIONS_PAGE}#{name.lower()}){about}"


def _errors(names: Mapping[str, griffe.Object]) -> frozenset[str]:
    """Return which of the names are errors: CometError and its subclasses."""
    found = set()
    for name, target in names.items():
        if isinstance(target, griffe.Class):
            lineage = {one.name for one in (target, *target.mro())}
            if "CometError" in lineage:
                found.add(name)
    return frozenset(found)


def _error_table(errors: Mapping[str, griffe.Object]) -> list[str]:
    def row(name: str, found: griffe.Object) -> tuple[str, ...]:
        assert isinstance(found, griffe.Class)
        lineage = [one.name for one in found.mro()]
        bases = [str(base) for base in found.bases if str(base) in errors]
        bases = bases or [base for base in lineage if base in errors][:1]
        return (code(name), ", ".join(map(code, bases)), _first_line(found))

    rows = [row(name, found) for name, found in errors.items()]
    return table(("error", "is a", "meaning"), rows)


def _first_line(found: griffe.Object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    assert found.docstring is not None
    return " ".join(found.docstring.value.partition("\n\n")[0].split())


# Types that are not exported


def _other_types(
    lines: list[str], loader: griffe.GriffeLoader, known: Collection[str]
) -> Iterator[str]:
    """Yield a table of those types in the page's signatures that have no section of their own.

    `known` are the names that other tables explain.
    """
    calls = re.findall(r"(?ms)^```text\n(.*?)^```|^- `([^\n]*)`$", "\n".join(lines))
    text = "\n".join("".join(call) for call in calls)
    known = {*known, *(line.removeprefix("### ") for line in lines if line.startswith("### "))}
    wanted = {*re.findall(r"\b[A-Z]\w+\b", text)} - known
    found = [
        one
        for name in ("cometmq.client", "cometmq.remoting")
        for one in _types(loader.modules_collection[name])
        if one.name in wanted
    ]
    yield "Types that occur in signatures, but that applications rarely import."
    yield ""
    rows = [
        (code(one.name), code(_module_of(one)), _definition(one), _first_line(one))
        for one in sorted(found, key=lambda one: (one.name, one.path))
    ]
    yield from table(("type", "module", "definition, or public members", "meaning"), rows)


def _types(module: griffe.Object | griffe.Alias) -> Iterator[griffe.Object]:
    """Yield the documented classes and type aliases of a package."""
    for name, member in module.members.items():
        if isinstance(member, griffe.Module):
            if name != "testing":
                yield from _types(member)
        elif name.startswith("_") or name.isupper() or isinstance(member, griffe.Alias):
            continue
        elif member.docstring is not None and isinstance(member, griffe.Class | griffe.Attribute):
            yield member


def _module_of(found: griffe.Object) -> str:
    return found.path.rpartition(".")[0]


def _definition(found: griffe.Object) -> str:
    if isinstance(found, griffe.Attribute):
        return code(str(found.value).strip("'"))
    names = [name for name in found.members if not name.startswith("_")]
    return ", ".join([*map(code, names[:NAMES_MAX]), *["..."][: len(names) > NAMES_MAX]])


# Separate modules


def _module(path: str, module: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the lines for a module that applications import in addition to `cometmq.client`."""
    yield from ("", f"## {code(path)}")
    assert module.docstring is not None
    yield from ("", module.docstring.value)
    for name in module.exports or ():
        yield from _object(str(name), _resolved(module[str(name)]))
