# SPDX-License-Identifier: Apache-2.0
"""The crate `rocketmq-client-rust` behind `tests/peers/rustclient`."""

import shutil
from pathlib import Path
from typing import Final

from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.java.maven import cache_entry, program, sources_mark
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import run_to_end

PROJECT: Final = ROOT / "tests" / "peers" / "rustclient"
_BUILD_TIMEOUT_S: Final = 3_600


def built_client() -> Path:
    """Return the path of our program; built on first use and after changes, in minutes."""
    with cache_entry(f"rustclient-{sources_mark(PROJECT)}") as (folder, complete):
        if not complete:
            shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
            run_to_end(
                [program("cargo"), "build", "--quiet"], timeout_s=_BUILD_TIMEOUT_S, cwd=folder
            )
    return folder / "target" / "debug" / "rustclient"


class RustClient(ClientProgram):
    """The client `rocketmq-client-rust`; its subcommands are `send` and `consume`."""

    name = "rust"

    def __init__(self, log_dir: Path) -> None:
        super().__init__(log_dir)
        self._command = [str(built_client())]

    def command(self) -> list[str]:
        return self._command
