# SPDX-License-Identifier: Apache-2.0
"""The verbs of the catalogue of views: options from arguments, a table or JSON, `--watch`."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from cometmq.cli.changes import command_of
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.cli.watching import watched
from cometmq.insight import times
from cometmq.insight.changes.change import arguments
from cometmq.insight.model import Unknown
from cometmq.insight.snapshot import look
from cometmq.insight.views.view import Column, Facts, View


def add_view(app: typer.Typer, kind: type[View], **others: type[View]) -> None:
    """Add the verb of a view; each of `others` is shown instead if the option of its name is
    given.
    """
    app.command(kind.words().rpartition(" ")[2])(watched(_verb_of(kind, others)))


def _verb_of(kind: type[View], others: dict[str, type[View]]) -> Callable[..., None]:
    def run(view: View, values: dict[str, Any]) -> None:
        for other in (it for flag, it in others.items() if values[flag]):
            names = {it.name for it in arguments(other)}
            for it in arguments(kind):
                if it.name not in names and getattr(view, it.name) != it.default:
                    raise wrong_usage(f"{other.verb} has no {it.flag}: leave it out")
            view = other(**{name: getattr(view, name) for name in names})
        show(view, values["namesrv"], as_json=values["as_json"])

    options: dict[str, Any] = {
        flag: (Annotated[bool, typer.Option(f"--{flag}", help=it.about())], False)
        for flag, it in others.items()
    }
    options |= {"namesrv": (Namesrv, DEFAULT_NAMESRV), "as_json": (AsJson, False)}
    return command_of(kind, options, run)


def show(view: View, namesrv: str, *, as_json: bool) -> None:
    """Print the rows of a view."""
    found = ask(namesrv, lambda admin: view.ask(Facts(admin, partial(look, admin))))
    columns = [it for it in view.columns if not it.is_page_only]
    if as_json:
        objects = [view.object_of(row, columns) for row in found.rows]
        print_json([{key: _known(it) for key, it in one.items()} for one in objects])
    else:
        rows = [[_cell(it, row) for it in columns] for row in found.rows]
        print_rows([it.title for it in columns], rows, as_json=False, empty=found.empty)
    print_notes(found.notes)


def _known(value: Any) -> Any:
    return None if isinstance(value, Unknown) else value


def _cell(column: Column[Any], row: Any) -> Cell:
    value = _known(column.value(row))
    is_time = column.kind == "moment" and value is not None
    cell: Cell = times.shown(value) if is_time else value
    return cell
