# SPDX-License-Identifier: Apache-2.0
"""CometMQ's own programs behind the interface of `JavaCluster`."""

from pathlib import Path
from typing import Final

from cometmq.peers.cluster import Cluster
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import PeerError

PROGRAM: Final = ROOT / ".venv" / "bin" / "cometmq"


class CometCluster(Cluster):
    """CometMQ as an operator starts it by hand: one process per program, properties files."""

    def _namesrv_command(self, conf_path: Path) -> list[str]:
        """`cometmq namesrv`."""
        return [*_program(), "namesrv", "-c", str(conf_path)]

    def _broker_command(self, conf_path: Path) -> list[str]:
        """`cometmq broker`."""
        return [*_program(), "broker", "-c", str(conf_path), "-n", self.namesrv_addr]

    def _ready_text(self) -> str:
        """Logged with the addresses once a program serves."""
        return "ready"


def _program() -> list[str]:
    """The command of the environment at the root."""
    if not PROGRAM.exists():
        raise PeerError("the environment lacks .venv/bin/cometmq: run make setup")
    return [str(PROGRAM)]
