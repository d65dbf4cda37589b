# SPDX-License-Identifier: Apache-2.0
"""The verbs of the catalogue of changes: options from arguments, a question, a dry run, the
outcome.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from cometmq.cli.access import ACCESS, check_namespace
from cometmq.cli.admin import CommandAdmin, DryRun
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    DryRunOption,
    Namesrv,
    Yes,
    ask,
    confirm,
    wrong_usage,
)
from cometmq.cli.option_sets import with_parameters
from cometmq.cli.outcome import DAMAGES
from cometmq.cli.output import AsJson, Cell, print_facts, print_json, print_notes, print_rows
from cometmq.client.errors import ClientError
from cometmq.insight.changes.change import (
    Argument,
    Change,
    Declared,
    Done,
    Plan,
    Risk,
    Rows,
    arguments,
)

Around = Callable[[Plan, Any, Mapping[str, Any]], AbstractAsyncContextManager[None]]
"""Returns the context in which the plan of a change is carried out, with the values of options."""
KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def add_changes(app: typer.Typer, kinds: Iterable[type[Change]], **around: Around) -> None:
    """Add the verbs of these changes; `around` has contexts by verb."""
    for kind in kinds:
        verb = kind.words().rpartition(" ")[2]
        app.command(verb)(verb_of(kind, around.get(verb)))


def verb_of(kind: type[Change], around: Around | None = None) -> Callable[..., None]:
    """Return the function of a verb, as Typer reads it."""
    options = {
        "namesrv": (Namesrv, DEFAULT_NAMESRV),
        **({} if kind.risk is Risk.LOW else {"yes": (Yes, False)}),
        **({"force": (_force(kind.forced), False)} if kind.forced else {}),
        "dry_run": (DryRunOption, False),
        "as_json": (AsJson, False),
    }
    return command_of(kind, options, lambda it, values: carry_out(it, values, around))


def _force(text: str) -> Any:
    return Annotated[bool, typer.Option("--force", help=text)]


def command_of(
    kind: type[Declared],
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[[Any, dict[str, Any]], None],
) -> Callable[..., None]:
    """Return a function, as Typer reads it, whose options are the arguments of `kind` and
    `options`, with their annotations and defaults; it calls `run` with what is asked for, and the
    values of all options.
    """
    named = arguments(kind)

    def call(**values: Any) -> None:
        given = {it.name: value_of(it, values) for it in named}
        run(kind(**{name: it for name, it in given.items() if it is not msgspec.NODEFAULT}), values)

    parameters = [one for it in named for one in parameters_of(it)]
    for name, (hint, default) in options.items():
        parameters.append(inspect.Parameter(name, KEYWORD, default=default, annotation=hint))
    call.__doc__ = kind.__doc__
    return with_parameters(call, parameters)


def parameters_of(it: Argument) -> list[inspect.Parameter]:
    """Return the options of an argument, as Typer reads them."""
    if it.is_switches:
        return [
            inspect.Parameter(
                word, KEYWORD, default=False,
                annotation=Annotated[bool, typer.Option(f"--{word}", help=f"{label}.")],
            )
            for word, label in it.choices.items()
        ]  # fmt: skip
    kind: Any = it.kind
    if it.kind is tuple:
        kind = list[str]
    elif it.choices:
        kind = Literal[tuple(it.choices)]
    flags = it.flags or ([] if it.is_positional else [it.flag])
    if it.kind is bool and it.default is not False:
        flags = [f"{it.flag}/{it.opposite}"]
    info: Any = typer.Argument if it.is_positional else typer.Option
    bounds = {"min": it.low, "max": it.high} if it.kind in {int, float} else {}
    default = inspect.Parameter.empty if it.is_needed else it.default
    if it.kind is tuple or default is None:
        kind, default = kind | None, None
    hint = Annotated[kind, info(*flags, help=it.help, **bounds)]
    return [inspect.Parameter(it.name, KEYWORD, default=default, annotation=hint)]


def value_of(it: Argument, values: Mapping[str, Any]) -> Any:
    """Return the value of an argument that the options give."""
    if it.is_switches:
        chosen = [word for word in it.choices if values[word]]
        if len(chosen) != 1:
            raise wrong_usage(f"give either {' or '.join(f'--{word}' for word in it.choices)}")
        return chosen[0]
    value = values.get(it.name, it.default)
    return tuple(value or ()) if it.kind is tuple else value


def carry_out(change: Change, options: Mapping[str, Any], around: Around | None = None) -> None:
    """Plan a change, ask, make it, and print the outcome; the options are those of the verb."""
    change.check()
    is_confirmed = options.get("yes", True)

    async def question(admin: CommandAdmin) -> tuple[Plan, Done]:
        plan = await change.plan(admin)
        if plan.topic:
            first = next(iter(arguments(type(change)))).name
            check_namespace(plan.topic, getattr(change, first))
        if plan.refusal or (plan.doubt and not options.get("force")):
            raise ClientError(plan.refusal or f"{plan.doubt} To do it anyway, give --force.")
        if ACCESS.get().is_dry_run:
            admin.preview = dict(plan.preview or _differences(plan))
            print_notes(_remarks(plan))
            raise DryRun(plan.what, plan.at)
        if plan.resume:
            admin.resume = lambda _: plan.resume
        elif any(it.name == "brokers" for it in arguments(type(change))):
            admin.resume = lambda rest: (
                f"do it there, too: {change.command(brokers=tuple(it.name for it in rest))}"
            )
        if not is_confirmed and not plan.idle:
            await _confirm(type(change), plan)
        DAMAGES.clear()  # damaged messages that the plan has read do not make the change fail
        async with nullcontext() if around is None else around(plan, change, options):
            return plan, await plan.perform(admin)

    plan, done = ask(options["namesrv"], question)
    _print(plan.after if done.rows is None else done.rows, plan, as_json=options["as_json"])
    if is_confirmed or not sys.stdin.isatty():
        print_notes(_remarks(plan))
    if not done.is_whole:
        print_notes([done.text])
        raise typer.Exit(1)


async def _confirm(kind: type[Change], plan: Plan) -> None:
    dangers = [it.text for it in plan.consequences if it.tone == "bad"]
    if kind.risk is Risk.LOW or (kind.asks_if_bad and not dangers):
        return
    if sys.stdin.isatty():
        if isinstance(plan.details, Mapping):
            _print(plan.details, plan, as_json=False)
        print_notes(plan.notes)
    what = f"{plan.what[:1].upper()}{plan.what[1:]}? {' '.join(dangers)}"
    await confirm(what.rstrip(), is_confirmed=False)


def _remarks(plan: Plan) -> list[str]:
    return [*plan.notes, *([plan.idle] if plan.idle else [])]


def _differences(plan: Plan) -> dict[str, Cell]:
    """Return what a plan changes, as facts: by setting, or by broker."""
    if not isinstance(plan.after, list):
        return dict(plan.after or {})
    before = {it["broker"]: it for it in plan.before or ()}
    return {it["broker"]: _between(before.get(it["broker"], {}), it) for it in plan.after}


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changes = [
        f"{name.replace('_', ' ')} {f'{before[name]} -> ' if name in before else ''}{it}"
        for name, it in after.items()
        if name != "broker" and before.get(name) != it
    ]
    return ", ".join(changes) or "unchanged"


def _print(rows: Rows, plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif isinstance(rows, Mapping):
        tables = {name: it for name, it in rows.items() if it and _is_table(it)}
        facts = {name: _cell(it) for name, it in rows.items() if name not in tables}
        print_facts(facts, as_json=False)
        for name, it in tables.items():
            _print(it, plan._replace(subject=name.capitalize()), as_json=False)
    else:
        columns: Sequence[str] = [it.replace("_", " ").capitalize() for it in (rows or [{}])[0]]
        cells = [list(row.values()) for row in rows]
        print_rows(columns, cells, as_json=False, title=plan.subject if rows else "")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], Mapping)


def _cell(value: Any) -> Cell:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={it}" for name, it in value.items())
    cell: Cell = value
    return cell
