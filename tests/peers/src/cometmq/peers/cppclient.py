# SPDX-License-Identifier: Apache-2.0
"""The C++ client under the PyPI package `rocketmq`, whose wheel carries `librocketmq.so`."""

import sys
from pathlib import Path
from typing import Final

from cometmq.peers.maven import cache_entry
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import run_to_end
from cometmq.peers.programs import ClientProgram

REQUIREMENT: Final = "rocketmq==0.4.4"
PROGRAM: Final = ROOT / "tests" / "peers" / "cppclient" / "client.py"
_INSTALL_TIMEOUT_S: Final = 300


def client_python() -> Path:
    """Interpreter of an environment that has only this package; made on first use."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with cache_entry(f"cppclient-{version}") as (folder, complete):
        if not complete:
            run_to_end([sys.executable, "-m", "venv", str(folder)], timeout_s=_INSTALL_TIMEOUT_S)
            pip = [str(folder / "bin" / "python"), "-m", "pip"]
            install = [*pip, "install", "--quiet", "--no-deps", REQUIREMENT]
            run_to_end(install, timeout_s=_INSTALL_TIMEOUT_S)
    return folder / "bin" / "python"


class CppClient(ClientProgram):
    """Subcommands: send, consume."""

    name = "cpp"

    def __init__(self, log_dir: Path) -> None:
        super().__init__(log_dir)
        self._log_home = log_dir
        self._command = [str(client_python()), str(PROGRAM)]

    def command(self) -> list[str]:
        """Python and our program; the library logs below HOME."""
        return ["env", f"HOME={self._log_home}", *self._command]
