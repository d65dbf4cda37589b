# SPDX-License-Identifier: Apache-2.0
"""`cometmq account`: the rights of accounts, and "may X do Y?"."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask
from cometmq.cli.lazy import App
from cometmq.cli.option_sets import arg
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.cli.watching import watched
from cometmq.console.rights import told_rights
from cometmq.runtime.acl.verdict import Deed

COLUMNS: Final = (
    "Account", "Admin", "Other topics", "Other groups", "Topics", "Groups", "Unsigned from",
    "Brokers", "Differs",
)  # fmt: skip

app = App("List the accounts of the brokers, and answer whether one may do something.")


@app.command("list")
@watched
def list_accounts(namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False) -> None:
    """List all accounts with their rights, without their secret keys.

    Only an administrator's account may read them. Accounts differ if brokers have different rights
    for them.

    \b
    EXAMPLE
      cometmq account list
    """
    told = ask(namesrv, told_rights)
    rows: list[list[Cell]] = [
        [list(cell) if isinstance(cell, tuple) else cell for cell in row] for row in told.rows()
    ]
    print_rows(COLUMNS, rows, as_json=as_json, empty="no broker has an account")
    print_notes(f"{name} does not tell its accounts: {why}" for name, why in told.refusals.items())
    if told.refusals and not told.configs:
        raise typer.Exit(1)


@app.command()
def may(
    account: Annotated[str, arg("Access key of the account.")],
    deed: Annotated[Deed, arg("Send to a topic, read it, or join a group.")],
    name: Annotated[str, arg("Full name of the topic or the group.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show whether each broker allows an account to do something, and which rule decides.

    A member of a group must be allowed to join it and to read its topics. Only an administrator's
    account may ask. The exit status is 1 unless all brokers allow it.

    \b
    EXAMPLES
      cometmq account may shop-web send orders
      cometmq account may shop-web join billing --json
    """
    told = ask(namesrv, told_rights)
    answers, exempt = told.answers(account, deed, name), told.exempt(account)
    is_allowed = all(it.is_allowed for it in answers)
    if as_json:
        question = {"account": account, "may": deed, "name": name}
        rows = [it._asdict() for it in answers]
        print_json({**question, "is_allowed": is_allowed, "answers": rows, "exempt": exempt})
    else:
        words = {True: "yes", False: "no", None: "unknown"}
        print_rows(
            ("Broker", "Allowed", "Rule"),
            [[it.broker, words[it.is_allowed], it.reason] for it in answers],
            as_json=False,
        )
        if exempt:
            print_notes([f"requests from {', '.join(exempt)} need no right"])
    if not is_allowed:
        raise typer.Exit(1)
