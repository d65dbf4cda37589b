# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's Prometheus for development and tests, with a generated configuration."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RULES: Final = Path(__file__).with_name("alerts.yaml")
MISSING: Final = (
    "prometheus is not installed: run `make prometheus` as root, or put prometheus on the PATH"
)


def program() -> str:
    """Return the path of Prometheus; raise FileNotFoundError if it is not installed."""
    found = shutil.which("prometheus")
    if found is None:
        raise FileNotFoundError(MISSING)
    return found


def configuration(jobs: Mapping[str, Sequence[str]], *, interval_s: int) -> dict[str, Any]:
    """Build a configuration that scrapes the addresses of each job and evaluates our alerts."""
    return {
        "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in jobs.items()
        ],
    }


def command(folder: Path, address: str, settings: Mapping[str, Any]) -> list[str]:
    """Write the configuration into the folder; return the command that starts Prometheus there."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
    return [
        program(),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=7d",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
