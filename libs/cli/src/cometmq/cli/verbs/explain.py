# SPDX-License-Identifier: Apache-2.0
"""`cometmq explain`: what a code, an event, a setting or a remark means, and what to do."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, Cell, print_facts, print_json
from cometmq.cli.say import say
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import CometError
from cometmq.remoting.integers import whole
from cometmq.remoting.refusals import plain_remark
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.meanings.answers import answer, remark, remarks_with
from cometmq.runtime.meanings.events import MEANINGS
from cometmq.runtime.meanings.runbooks import runbook_text, runbooks_of
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings.fields import SettingsField, fields_of

_CODE_OF_JAVA: Final = re.compile(r"CODE: *(\d+)")
_STATUSES: Final = {"SEND_OK": "SUCCESS"}
"""Names of a send's outcome that differ from those of the codes."""

PART_CHARS_MIN: Final = 4
"""Shorter parts of a remark are not looked for."""

_ANSWERS: Final = frozenset(map(int, ResponseCode))
_REQUESTS: Final = frozenset(map(int, RequestCode))

app = App()

Facts = dict[str, Cell]


class NotExplained(CometError):
    """No code, event, setting or remark of this name is known."""


@app.command()
def explain(
    text: Annotated[
        list[str],
        typer.Argument(help="A code, its name, an event, a remark, a setting or a runbook."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Say what a code, event, remark or setting means, and what to do; or print a runbook.

    \b
    EXAMPLES
      cometmq explain 14
      cometmq explain SYSTEM_BUSY
      cometmq explain disk.full
      cometmq explain fileReservedTime
      cometmq explain disk-full.md
      cometmq explain 'CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker busy'
    """
    words = " ".join(text).strip()
    found = explained(words)
    if as_json:
        print_json(found)
        return
    if "runbook" in found[0]:
        say(str(found[0]["text"]).rstrip())
        return
    for number, facts in enumerate(found):
        if number:
            say()
        print_facts({name: value for name, value in facts.items() if value}, as_json=False)


def explained(words: str) -> list[Facts]:
    """Return what a code, an event or a remark means, or a runbook; raise NotExplained if nothing
    is known.
    """
    found = list(_explained(words))
    if not found:
        names = [*ResponseCode.__members__, *RequestCode.__members__, *MEANINGS]
        names += [name for _, fields in _tables() for name in fields]
        raise NotExplained(
            f"no code, event, setting or remark {words[:80]!r} is known"
            f"{did_you_mean(words, names)}; info and debug events have no"
            " further meaning"
        )
    return found


def _explained(words: str) -> Iterator[Facts]:
    text = runbook_text(words)
    if text is not None:
        yield {"runbook": words, "text": text}
        return
    if words in MEANINGS:
        pages: Cell = [f"docs/runbooks/{page}" for page in runbooks_of(words)]
        yield {"event": words, "meaning": MEANINGS[words].replace("`", ""), "runbooks": pages}
        return
    number = whole(words.removeprefix("-"))
    if number is not None:
        yield from _of_code(-number if words.startswith("-") else number)
        return
    name = _STATUSES.get(words.upper(), words.upper())
    if name in ResponseCode.__members__:
        yield _answer(ResponseCode[name], name)
        return
    if name in RequestCode.__members__:
        yield _request(RequestCode[name])
        return
    if settings := list(_settings(words)):
        yield from settings
        return
    known = remark(plain_remark(words))
    found = [] if known is None else [known]
    if known is None and len(words) >= PART_CHARS_MIN:
        found = remarks_with(words)
    for one in found:
        yield {"remark": words, "meaning": one.meaning, "advice": one.advice}
    code = _CODE_OF_JAVA.search(words)
    if code is not None and int(code[1]) in _ANSWERS:
        yield _answer(ResponseCode(int(code[1])))


def _tables() -> Iterator[tuple[str, Mapping[str, SettingsField]]]:
    """Yield the settings of each program that is installed."""
    for name, program in PROGRAMS.items():
        with suppress(ImportError):
            yield name, fields_of(program.settings_type())


def _settings(words: str) -> Iterator[Facts]:
    """Yield a setting once for all programs for which it means the same."""
    if not words.replace(".", "").isalnum():
        return
    found: dict[str, tuple[Facts, list[str]]] = {}
    for program, fields in _tables():
        for name, field in fields.items():
            if name.lower() == words.lower():
                facts = _setting(field)
                found.setdefault(repr(facts), (facts, []))[1].append(program)
    for facts, programs in found.values():
        yield {"setting": facts.pop("setting"), "of": programs, **facts}


def _setting(field: SettingsField) -> Facts:
    changing: Cell = "at a start of the program: a file, a variable or " + field.option
    if field.is_mutable:
        changing = f"at any time (mqadmin updateBrokerConfig, updateNamesrvConfig), {changing}"
    default = "the machine decides it"
    if field.default is not msgspec.NODEFAULT:
        default = "unset" if field.default in {None, ""} else str(field.default)
    return {
        "setting": field.name,
        "meaning": field.description.replace("`", ""),
        "value": field.expected,
        "default": default.lower() if field.base is bool else default,
        "changes": changing,
    }


def _of_code(code: int) -> Iterator[Facts]:
    """Yield the answer and the request of a number, which may be both."""
    if code in _ANSWERS:
        for name, one in ResponseCode.__members__.items():
            if one == code:
                yield _answer(one, name)
                break
    if code in _REQUESTS:
        yield _request(RequestCode(code))


def _answer(code: ResponseCode, name: str = "") -> Facts:
    meaning, advice = answer(code)
    return {
        "answer": f"{int(code)} {name or code.name}",
        "meaning": f"{meaning[0].upper()}{meaning[1:]}.",
        "advice": advice.replace("`", ""),
    }


def _request(code: RequestCode) -> Facts:
    words = code.name.lower().replace("_", " ")
    return {"request": f"{int(code)} {code.name}", "meaning": f"The request to {words}."}
