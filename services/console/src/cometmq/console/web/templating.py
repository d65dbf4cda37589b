# SPDX-License-Identifier: Apache-2.0
"""Templates of pages: HTML with Python expressions, compiled at their first use.

- `{{ expression }}` shows a value, escaped unless it is `Markup`; control characters are written
  out, except in what a form sends back.
- `{% if %}`, `{% elif %}`, `{% else %}`, `{% for %}` and `{% set name = value %}` are Python's
  statements; `{% endif %}` and `{% endfor %}` end them.
- `{% macro name(arguments) %}` defines a function; those of `macros.html` are there for all, as
  `m`.
- A template that `{% extends 'another' %}` is shown as that one, with its own `{% block name %}`
  instead of that one's. `{% include 'another' %}` shows it in place.

This is the syntax of Jinja without filters and tests. Jinja itself is not used, because it adds 3
MiB, a tenth, to the memory of an open console.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

from markupsafe import Markup, escape

from cometmq.remoting.visible import visible

_TAG: Final = re.compile(
    r"\{\{(?P<shown>.*?)\}\}"
    r"|(?:^[ \t]+)?\{%(?P<statement>.*?)%\}\n?"
    r"|(?:^[ \t]+)?\{#.*?#\}\n?",
    re.MULTILINE | re.DOTALL,
)


class Templates:
    """The templates of a folder; `names` are defined in all of them."""

    def __init__(self, folder: Path, names: Mapping[str, object]) -> None:
        self._folder = folder
        self._names = {**names, "escaped": escaped, "exact": _exact, "_joined": _joined}
        self._compiled: dict[str, tuple[CodeType, str]] = {}

    def render(self, name: str, values: Mapping[str, object]) -> str:
        """Return a page; raise NameError if a template uses a value that is missing in `values`."""
        space: dict[str, Any] = {**self._names, **values, "_blocks": {}}
        macros = dict(space)
        try:
            self._show(macros, "macros.html")
            space["m"] = SimpleNamespace(**macros)
            space["_include"] = partial(self._show, space)
            return self._show(space, name)
        finally:  # their functions refer to them
            macros.clear()
            space.clear()

    def _show(self, space: dict[str, Any], name: str) -> str:
        while name:
            if name not in self._compiled:
                source, extended = as_module((self._folder / name).read_text("utf-8"))
                self._compiled[name] = compile(source, name, "exec"), extended
            code, name = self._compiled[name]
            exec(code, space)  # noqa: S102  # a file of this package
        show: Callable[[], str] = space["_page"]
        return show()


def escaped(value: Any) -> Markup:
    """Escape a value for HTML, with control characters written out; `Markup` is left unchanged."""
    return value if type(value) is Markup else escape(visible(str(value)))


def _exact(value: Any) -> Markup:
    """Escape a value for a form's field, without writing out control characters."""
    return value if type(value) is Markup else escape(value)


def _joined(parts: Callable[..., Iterator[str]]) -> Callable[..., Markup]:
    def show(*args: Any, **named: Any) -> Markup:
        return Markup("".join(parts(*args, **named)))  # noqa: S704  # every value is escaped

    return show


def as_module(text: str) -> tuple[str, str]:
    """Return a template as a Python module, and the name of the template that it extends.

    Its macros and blocks are functions of the module; `_page` returns the rest.
    """
    writer, at = _Writer(), 0
    for tag in _TAG.finditer(text):
        writer.show(repr(text[at : tag.start()]))
        at = tag.end()
        if tag["shown"] is not None:
            how = "exact" if _is_sent_back(text[: tag.start()]) else "escaped"
            writer.show(f"{how}({tag['shown'].strip()})")
        elif tag["statement"] is not None:
            word, _, rest = tag["statement"].strip().partition(" ")
            writer.state(word, rest)
    writer.show(repr(text[at:]))
    return writer.module(), writer.extended


def _is_sent_back(before: str) -> bool:
    """Return whether the text before a value shows that it is the value of a form's field."""
    is_in_area = before.rfind("<textarea") > before.rfind("</textarea")
    return is_in_area or before.endswith('value="')


class _Writer:
    """Writes the module of a template."""

    def __init__(self) -> None:
        self.extended = ""
        self._finished: list[str] = []
        self._functions: list[list[str]] = []
        """The lines of each function that has begun, the innermost last."""
        self._open: list[tuple[str, str]] = []
        """The word that ends each statement that has begun, and its name if it is a block."""
        self._indent: list[str] = []
        """The present indentation in each function that has begun."""
        self._begin_function("_page()")

    def module(self) -> str:
        """Return the source of the module."""
        assert not self._open, f"{self._open[-1][0]} is missing"
        self._end_function()
        return "\n".join(self._finished)

    def show(self, expression: str) -> None:
        """Write the code that shows the value of an expression."""
        if expression != "''":
            self._write(f"yield {expression}")

    def state(self, word: str, rest: str) -> None:
        """Translate a statement of the template, such as `if` or `endfor`."""
        match word:
            case "if" | "for":
                self._open.append((f"end{word}", ""))
                self._begin_suite(f"{word} {rest}:")
            case "elif" | "else":
                self._indent[-1] = self._indent[-1][4:]
                self._begin_suite(f"{word} {rest}".rstrip() + ":")
            case "macro" | "block":
                name = rest if word == "block" else ""
                self._open.append((f"end{word}", name))
                self._begin_function(f"_block_{name}()" if name else rest)
            case "set":
                self._write(rest)
            case "include":
                self.show(f"_include({rest})")
            case "extends":
                self.extended = rest.strip("'")
            case _:
                self._end(word)

    def _end(self, word: str) -> None:
        expected, block = self._open.pop()
        assert word == expected, f"{word} where {expected} is expected"
        if word in {"endif", "endfor"}:
            self._indent[-1] = self._indent[-1][4:]
            return
        self._end_function()
        if block:
            self._finished.append(f"_blocks.setdefault({block!r}, _block_{block})")
            self.show(f"_blocks[{block!r}]()")

    def _begin_function(self, signature: str) -> None:
        self._functions.append(["@_joined", f"def {signature}:"])
        self._indent.append("    ")
        self._write("yield ''")  # a generator, even if nothing follows

    def _end_function(self) -> None:
        self._finished += self._functions.pop()
        self._indent.pop()

    def _begin_suite(self, line: str) -> None:
        self._write(line)
        self._indent[-1] += "    "
        self._write("pass")

    def _write(self, line: str) -> None:
        self._functions[-1].append(self._indent[-1] + line)
