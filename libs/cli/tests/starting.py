# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests that start programs."""

import subprocess
import urllib.request

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180


def refuse(*args, cwd, prefix=()):
    """Run a program that cannot start; return its single line."""
    (line,) = refusals(*args, cwd=cwd, prefix=prefix)
    return line


def refusals(*args, cwd, prefix=()):
    """Run a program that cannot start; return its lines."""
    done = subprocess.run(
        [*prefix, str(PROGRAM), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("cometmq: ")]


def suite_options(data, http_port=-1):
    return [
        *("--data", data, "--namesrv-port", free_port()),
        *("--broker-port", free_broker_port(), "--http-port", http_port),
    ]


def fetch(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


GROUP = ("--broker-name", "orders", "--control-members", "0=127.0.0.1:1")


def alone(program, folder):
    """Return a valid command line, to which tests add their options."""
    port = ("--listen-port", free_broker_port())
    return {
        "standalone": ("standalone", *suite_options(folder)),
        "namesrv": ("namesrv", *port, "--kv-config-path", folder / "kv.json"),
        "broker": ("broker", *port, "--store-path-root-dir", folder),
        "txn-checker": ("txn-checker", "-n", "127.0.0.1:1", "--store-path-root-dir", folder),
        "exporter": ("exporter", "-n", "127.0.0.1:1", "--admin-http-port", free_port()),
        "console": ("console", "-n", "127.0.0.1:1", *port, "--store-path-root-dir", folder),
        "elector": ("elector", *GROUP, "--group-record", f"file:{folder}/orders.json"),
    }[program]
