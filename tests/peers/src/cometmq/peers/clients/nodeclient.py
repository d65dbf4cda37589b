# SPDX-License-Identifier: Apache-2.0
"""The npm client `ali-ons` behind `tests/peers/nodeclient/client.js`."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.java.maven import cache_entry, program
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import run_to_end

PROJECT: Final = ROOT / "tests" / "peers" / "nodeclient"
FILES: Final = ("package.json", "client.js")
_INSTALL_TIMEOUT_S: Final = 300


def installed_client() -> Path:
    """Return the path of our program, next to its packages in the cache; fetched on first use."""
    contents = b"".join((PROJECT / name).read_bytes() for name in FILES)
    mark = hashlib.sha256(contents).hexdigest()[:12]
    with cache_entry(f"nodeclient-{mark}") as (folder, complete):
        if not complete:
            for name in FILES:
                shutil.copyfile(PROJECT / name, folder / name)
            install = [
                program("npm"),
                "install",
                "--no-package-lock",
                "--ignore-scripts",
                "--no-audit",
            ]
            run_to_end(install, timeout_s=_INSTALL_TIMEOUT_S, cwd=folder)
    return folder / "client.js"


class NodeClient(ClientProgram):
    """The client `ali-ons`; its subcommands are `send` and `consume`."""

    name = "node"

    def __init__(self, log_dir: Path) -> None:
        super().__init__(log_dir)
        self._command = [program("node"), str(installed_client())]

    def command(self) -> list[str]:
        return self._command
