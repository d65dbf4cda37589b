# SPDX-License-Identifier: Apache-2.0
"""Run Prometheus for a suite on this machine until Ctrl-C.

It scrapes the HTTP port of `make run` and evaluates the alert rules.
"""

import argparse
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from monitoring.prometheus import command, configuration

FOLDER: Final = Path(__file__).resolve().parents[1] / ".cache" / "monitoring"
PROBE_TIMEOUT_S: Final = 5.0


def answers(address: str) -> bool:
    """Return whether a program serves metrics at this address."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PROBE_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def text(address: str, targets: list[str]) -> str:
    """Return the text for the user: the address of Prometheus, and missing targets."""
    lines = [
        "Prometheus is running; Ctrl-C stops it.",
        f"  graphs      http://{address}/graph?g0.expr=rate(cometmq_put_messages_total%5B1m%5D)",
        f"  targets     http://{address}/targets",
        f"  alerts      http://{address}/alerts",
        f"  data        {FOLDER}",
        "  dashboards  import those of `cometmq generate grafana` into Grafana, with a Prometheus",
        f"              data source at http://{address}",
    ]
    lines += [
        f"Nothing answers at http://{target}/metrics yet: start it with `make run`."
        for target in targets
        if not answers(target)
    ]
    return "\n".join(lines)


def main() -> int:
    """Run Prometheus; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:9090", help="address of Prometheus")
    parser.add_argument(
        "--target", action="append", help="HTTP port of a program; default: 127.0.0.1:8080"
    )
    options = parser.parse_args()
    targets = options.target or ["127.0.0.1:8080"]
    try:
        words = command(FOLDER, options.listen, configuration({"cometmq": targets}, interval_s=5))
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    with subprocess.Popen(words) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        print(text(options.listen, targets), flush=True)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # Prometheus got the same Ctrl-C: wait for its exit


if __name__ == "__main__":
    sys.exit(main())
