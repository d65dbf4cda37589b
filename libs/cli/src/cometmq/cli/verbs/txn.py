# SPDX-License-Identifier: Apache-2.0
"""`cometmq txn`: list, check and resolve open transactions.

Everything is read from the brokers' half and op queues, so it works without a txn-checker and with
RocketMQ's brokers. `verify` compares a txn-checker's folder with these queues.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.changes import add_changes
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, Cell, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.cli.verbs.views import add_view
from cometmq.client.admin import AdminClient
from cometmq.insight.changes.messages import CheckTransaction, ResolveTransaction
from cometmq.insight.transactions import facts_of, find_transaction
from cometmq.insight.views.messages import OpenTransactions
from cometmq.txn_checker.verify import is_checker_folder, verify_folder

app = App("List open transactions, check them with their producers, or end them by hand.")

EXIT_DIFFERENT: Final = 1

Transaction = Annotated[
    str, typer.Argument(help="Message id, or broker and offset of the half message: broker-a:17.")
]

add_view(app, OpenTransactions)


@app.command()
def show(
    transaction: Transaction, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Show a transaction's message and producer, and whether it is still open.

    \b
    EXAMPLE
      cometmq txn show broker-a:1234
    """

    async def question(admin: AdminClient) -> dict[str, Any]:
        master, half = await find_transaction(admin, transaction)
        return facts_of(half, await master.state(half))

    _print_facts(ask(namesrv, question), as_json=as_json)


add_changes(app, [CheckTransaction, ResolveTransaction])


@app.command()
def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            help="storePathRootDir of a txn-checker, or the data folder of cometmq standalone."
        ),
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare the tables of a txn-checker, running or not, with the brokers' queues.

    The exit status is 1 if they differ. Messages that the txn-checker has not read yet do not count
    as differences.

    \b
    Transactions  half messages in the tables, open or ended
    Open          transactions that are neither committed nor rolled back
    Half behind   half messages that the txn-checker has not read yet
    Op behind     commits and rollbacks that the txn-checker has not read yet
    Differences   contradictions between tables and queues; each is printed below

    \b
    EXAMPLE
      cometmq txn verify /var/lib/cometmq
    """
    root = _checker_folder(folder)
    found = ask(namesrv, lambda admin: verify_folder(root, admin))
    if as_json:
        print_json([msgspec.structs.asdict(one) for one in found])
    else:
        columns = ("Broker", "Transactions", "Open", "Half behind", "Op behind", "Differences")
        rows: list[list[Cell]] = [
            [one.broker, one.entry_count, one.open_count, one.half_behind, one.op_behind,
             len(one.differences)]
            for one in found
        ]  # fmt: skip
        print_rows(columns, rows, as_json=False)
        for one in found:
            for line in one.differences:
                say(f"{one.broker}: {line}")
    if any(one.differences for one in found):
        raise typer.Exit(EXIT_DIFFERENT)


def _checker_folder(folder: Path) -> Path:
    """Return a txn-checker's folder; in the data folder of `standalone` it is one level down."""
    if not folder.is_dir():
        raise wrong_usage(f"{folder} is not a folder")
    root = folder / "txn-checker" if (folder / "txn-checker").is_dir() else folder
    if not is_checker_folder(root):
        raise wrong_usage(
            f"{folder} is not the folder of a txn-checker: it has no state tables of brokers"
        )
    return root


def _print_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    shown = facts | {
        "keys": " ".join(facts["keys"]),
        "properties": " ".join(f"{name}={text}" for name, text in facts["properties"].items()),
    }
    print_facts(shown, as_json=False)
