# SPDX-License-Identifier: Apache-2.0
"""The C++ client in the PyPI package `rocketmq`, whose wheel contains `librocketmq.so`."""

from pathlib import Path
from typing import Final

from cometmq.peers.clients.environments import environment
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.paths import ROOT

REQUIREMENT: Final = "rocketmq==0.4.4"
PROGRAM: Final = ROOT / "tests" / "peers" / "cppclient" / "client.py"


def client_python() -> Path:
    """Return the interpreter of an environment with only this package; created on first use."""
    return environment("cppclient", "--no-deps", REQUIREMENT)


class CppClient(ClientProgram):
    """The C++ client; its subcommands are `send` and `consume`."""

    name = "cpp"

    def __init__(self, log_dir: Path) -> None:
        super().__init__(log_dir)
        self._log_home = log_dir
        self._command = [str(client_python()), str(PROGRAM)]

    def command(self) -> list[str]:
        """Return the command line; HOME is set because the library writes its logs under it."""
        return ["env", f"HOME={self._log_home}", *self._command]
