# SPDX-License-Identifier: Apache-2.0
"""Jinja2 for the pages: everything that a template shows is escaped, and control characters are
written out, except in what a form sends back (`|e`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cometmq.remoting.visible import visible


def templates(folder: Path, names: Mapping[str, object]) -> Environment:
    """Return the templates of a folder; `names` and the macros of `macros.html`, as `m`, are
    defined in all of them. One that uses a missing value raises UndefinedError.
    """
    found = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        auto_reload=False,
        finalize=_finalized,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    found.globals.update(names)
    found.globals["m"] = found.get_template("macros.html").module
    return found


def escaped(value: Any) -> Markup:
    """Escape a value for HTML, with control characters written out; `Markup` is left unchanged."""
    return value if type(value) is Markup else escape(visible(str(value)))


def _finalized(value: Any) -> Any:
    """Return what a template shows of a value; Jinja escapes it then."""
    is_done = isinstance(value, Markup | StrictUndefined)
    return value if is_done else visible(str(value))
