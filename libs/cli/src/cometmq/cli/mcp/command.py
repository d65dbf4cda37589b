# SPDX-License-Identifier: Apache-2.0
"""The options of `cometmq mcp`; the SDK is imported only once they are read."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run, wrong_usage
from cometmq.cli.lazy import App

INSTALL: Final = (
    "the MCP server needs the package mcp, 2.3 or newer: install cometmq-cli[mcp] or, after make"
    " run in a clone, run .venv/bin/pip install 'mcp>=2.3,<3'"
)
STATE_FOLDER: Final = ".local/state/cometmq/mcp"
_PACKAGES: Final = frozenset({"mcp", "mcp_types"})

app = App()


@app.command()
def mcp(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer the tools that change something, too.")
    ] = False,
    audit_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the audit log (default ~/.local/state/cometmq/mcp)."),
    ] = None,
) -> None:
    """Serve tools to an assistant over standard input and output (Model Context Protocol).

    Without --allow-changes, all tools only read. A change is a dry run unless its call says
    confirm=true; each one is written to the audit log before it is made, and with its outcome.

    \b
    EXAMPLE
      cometmq mcp -n 127.0.0.1:9876
    """
    try:
        server = import_module("cometmq.cli.mcp.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise wrong_usage(INSTALL) from error
    folder = Path.home() / STATE_FOLDER if audit_dir is None else audit_dir
    run(server.serve(namesrv, folder, allow_changes=allow_changes))
