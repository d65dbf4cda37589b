# SPDX-License-Identifier: Apache-2.0
"""Our own commands, and a runner for them."""

from typer.testing import CliRunner

from cometmq.cli import mqadmin
from cometmq.cli.main import COMMANDS, app

OWN = {name: info for name, info in COMMANDS.items() if name not in mqadmin.COMMANDS}


def invoke(*args, env=None):
    return CliRunner().invoke(
        app, args, env={"COMETMQ_LOG_LEVEL": None, **(env or {})}, prog_name="cometmq"
    )
