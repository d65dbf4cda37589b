# SPDX-License-Identifier: Apache-2.0
"""Runs kubectl and helm in one namespace; the credentials come from KUBECONFIG."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cometmq.peers.errors import PeerError

T = TypeVar("T")

COMMAND_TIMEOUT_S: Final = 300
POLL_S: Final = 0.2


class Namespace:
    """Runs commands in one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self, **labels: str) -> None:
        """Delete the namespace if it exists, and create it."""
        self.delete()
        run("kubectl", "create", "namespace", self.name)
        pairs = [f"{key}={value}" for key, value in labels.items()]
        run("kubectl", "label", "namespace", self.name, *pairs)

    def delete(self) -> None:
        run("kubectl", "delete", "namespace", self.name, "--ignore-not-found", "--wait")

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl; return its output, or raise PeerError with its errors."""
        return run("kubectl", "--namespace", self.name, *words, stdin=stdin)

    def get(self, *words: str) -> Any:
        """Return the result of `kubectl get WORDS`, or None if the object does not exist."""
        text = self.kubectl("get", *words, "--output=json", "--ignore-not-found")
        return json.loads(text) if text else None

    def list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects of a kind with these labels."""
        found = self.get(kind, f"--selector={selector}")
        return found["items"] if found else []

    def apply(self, *objects: dict[str, Any]) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(body))

    def annotate(self, name: str, key: str, value: str) -> None:
        self.kubectl("annotate", "--overwrite", name, f"{key}={value}")

    def helm(self, *words: str) -> str:
        return run("helm", "--namespace", self.name, *words)


def run(*words: str, stdin: str = "") -> str:
    """Run a command; return its output, or raise PeerError with its errors."""
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
    )
    if done.returncode:
        raise PeerError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def until(
    check: Callable[[], T | None], timeout_s: float, what: str, *, poll_s: float = POLL_S
) -> T:
    """Poll until a check returns a true value, and return it; raise PeerError on a timeout."""
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        if time.monotonic() > deadline:
            raise PeerError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(poll_s)
    return found
