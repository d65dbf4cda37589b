# SPDX-License-Identifier: Apache-2.0
"""The verbs of the catalogue of views: options from arguments, a table or JSON, `--watch`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from cometmq.cli.changes import KEYWORD, parameters_of, value_of
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
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
    def run(*, namesrv: str, as_json: bool, **values: Any) -> None:
        chosen = next((it for flag, it in others.items() if values.pop(flag)), kind)
        given = {it.name: value_of(it, values) for it in arguments(kind)}
        names = {it.name for it in arguments(chosen)}
        for it in arguments(kind):
            if it.name not in names and given[it.name] != it.default:
                raise wrong_usage(f"{chosen.verb} has no {it.flag}: leave it out")
        show(chosen(**{name: given[name] for name in names}), namesrv, as_json=as_json)

    parameters = [one for it in arguments(kind) for one in parameters_of(it)]
    options: dict[str, Any] = {
        flag: (Annotated[bool, typer.Option(f"--{flag}", help=it.about())], False)
        for flag, it in others.items()
    }
    options |= {"namesrv": (Namesrv, DEFAULT_NAMESRV), "as_json": (AsJson, False)}
    for name, (hint, default) in options.items():
        parameters.append(inspect.Parameter(name, KEYWORD, default=default, annotation=hint))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {it.name: it.annotation for it in parameters}
    run.__doc__ = kind.__doc__
    return run


def show(view: View, namesrv: str, *, as_json: bool) -> None:
    """Print the rows of a view."""
    found = ask(namesrv, lambda admin: view.ask(Facts(admin, partial(look, admin))))
    columns = [it for it in view.columns if not it.is_page_only]
    rows = [[_cell(it, row) for it in columns] for row in found.rows]
    print_rows([it.title for it in columns], rows, as_json=as_json, empty=found.empty)
    print_notes(found.notes)


def _cell(column: Column[Any], row: Any) -> Cell:
    value = column.value(row)
    if isinstance(value, Unknown):
        return None
    cell: Cell = times.shown(value) if column.kind == "moment" else value
    return cell
