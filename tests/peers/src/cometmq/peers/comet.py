# SPDX-License-Identifier: Apache-2.0
"""Runs CometMQ's own programs behind the interface of `JavaCluster`."""

from pathlib import Path
from typing import Final

from cometmq.peers.cluster import START_TIMEOUT_S, STOP_TIMEOUT_S, Cluster, write_properties
from cometmq.peers.errors import PeerError
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import Child

PROGRAM: Final = ROOT / ".venv" / "bin" / "cometmq"


class CometCluster(Cluster):
    """CometMQ as an operator would start it by hand: one configured process per program."""

    program: Path = PROGRAM
    txn_checker: Child | None = None

    @property
    def txn_checker_dir(self) -> Path:
        return self.directory / "txn-checker"

    def start(self) -> None:
        super().start()
        if self.transaction_conf is not None:
            self.start_txn_checker()

    def start_txn_checker(self) -> None:
        """Start the txn-checker and wait until it is ready."""
        conf_path = self.directory / "txn-checker.conf"
        own = {"storePathRootDir": self.txn_checker_dir, "namesrvAddr": self.namesrv_addr}
        write_properties(conf_path, {**own, **(self.transaction_conf or {})})
        self.txn_checker = Child(
            "txn-checker",
            [*self._command(), "txn-checker", "-c", str(conf_path)],
            log_path=self.directory / "txn-checker.log",
        )
        self.txn_checker.wait_for_log(self._ready_text(), START_TIMEOUT_S)

    def stop_txn_checker(self) -> int:
        """Stop the txn-checker with SIGTERM; return its exit status."""
        child, self.txn_checker = self.txn_checker, None
        return child.stop(STOP_TIMEOUT_S) if child else 0

    def kill_txn_checker(self) -> int:
        """Kill the txn-checker with SIGKILL; return its exit status."""
        child, self.txn_checker = self.txn_checker, None
        return child.kill() if child else 0

    def _take_children(self) -> list[Child]:
        child, self.txn_checker = self.txn_checker, None
        return [*([child] if child else []), *super()._take_children()]

    def _namesrv_command(self, conf_path: Path) -> list[str]:
        return [*self._command(), "namesrv", "-c", str(conf_path)]

    def _broker_command(self, conf_path: Path) -> list[str]:
        return [*self._command(), "broker", "-c", str(conf_path), "-n", self.namesrv_addr]

    def _command(self) -> list[str]:
        if not self.program.exists():
            raise PeerError(f"the environment lacks {self.program}: run make setup")
        return [str(self.program)]

    def _ready_text(self) -> str:
        """Return the event that a program logs once it is ready; it contains the addresses."""
        return "ready"
