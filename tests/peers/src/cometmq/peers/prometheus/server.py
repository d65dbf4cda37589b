# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's Prometheus and asks it for targets, rules and results of queries."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from monitoring.prometheus import command

from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child

REQUEST_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 60


class Prometheus:
    """A Prometheus that runs until `stop`; results are empty while it is starting."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.address = f"{HOST}:{free_port()}"
        words = command(folder, self.address, settings)
        self._child = Child("prometheus", words, log_path=folder / "prometheus.log")

    def stop(self) -> None:
        self._child.stop(STOP_TIMEOUT_S)

    def log(self) -> str:
        return self._child.log()

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that are scraped, whether they are up or not."""
        found: dict[str, Any] = self._ask("targets") or {"activeTargets": []}
        return list(found["activeTargets"])

    def has_all_targets(self, count: int) -> bool:
        found = self.targets()
        return len(found) == count and all(one["health"] == "up" for one in found)

    def alert_rules(self) -> list[dict[str, Any]]:
        found: dict[str, Any] = self._ask("rules", type="alert") or {"groups": []}
        return [rule for group in found["groups"] for rule in group["rules"]]

    def rows(self, expr: str) -> list[Any]:
        """Return the series of a query's result."""
        found: dict[str, Any] = self._ask("query", query=expr) or {"result": []}
        return list(found["result"])

    def _ask(self, page: str, **words: str) -> Any:
        """Return the data from an API response, or None while Prometheus is starting."""
        url = f"http://{self.address}/api/v1/{page}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise AssertionError(f"{words}: {error.read().decode()}") from error
            return None
        except OSError:
            return None
