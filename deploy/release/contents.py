# SPDX-License-Identifier: Apache-2.0
"""The CycloneDX document of a release: our packages, what they need at run time, and the crates.

The versions and digests are those of the lock files, so the document needs no network.
"""

import hashlib
import json
import re
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Component = dict[str, Any]


def component(
    kind: str, name: str, version: str, hashes: Iterable[str], **more: object
) -> Component:
    """Return a component with SHA-256 digests; `kind` is the type of its package URL."""
    url = f"pkg:{kind}/{name}@{version}"
    listed = [{"alg": "SHA-256", "content": digest} for digest in sorted(hashes)]
    return {
        "type": "library", "bom-ref": url, "name": name, "version": version, "purl": url,
        **({"hashes": listed} if listed else {}), **more,
    }  # fmt: skip


def locked_packages(lock: str) -> list[Component]:
    """Return the packages of a lock with hashes.

    A package has a digest for each of its files, of which an installation uses one; so they are
    properties, not digests of the component.
    """
    found = []
    for block in re.split(r"\n(?=\S)", lock):
        if match := re.match(r"([\w.-]+)==([\w.]+)", block):
            files = [
                {"name": "cometmq:file:sha256", "value": digest}
                for digest in re.findall(r"sha256:(\w+)", block)
            ]
            found.append(component("pypi", match[1], match[2], (), properties=files))
    return found


def locked_crates(lock: str) -> list[Component]:
    """Return the crates of a Cargo.lock, without our own."""
    return [
        component("cargo", it["name"], it["version"], [it["checksum"]])
        for it in tomllib.loads(lock)["package"]
        if "checksum" in it
    ]


def own_packages(wheels: Iterable[Path]) -> list[Component]:
    """Return a CycloneDX component for each of our wheels; platforms have different ones."""
    found = []
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        one = component(
            "pypi", name.replace("_", "-"), version, [digest],
            licenses=[{"expression": "Apache-2.0"}],
            properties=[{"name": "cometmq:wheel", "value": wheel.name}],
        )  # fmt: skip
        one["bom-ref"] = f"{one['purl']}?file_name={wheel.name}"
        found.append(one)
    return found


def document(version: str, components: list[Component], *, epoch: int) -> str:
    """Return the document; the same components and time give the same bytes."""
    ordered = sorted(components, key=lambda one: str(one["bom-ref"]))
    refs = [one["bom-ref"] for one in ordered]
    subject = {
        "type": "application", "bom-ref": f"cometmq@{version}", "name": "CometMQ",
        "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}],
    }  # fmt: skip
    text = json.dumps(ordered, sort_keys=True)
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{version} {text}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": subject,
        },
        "components": ordered,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": refs}],
    }
    return json.dumps(bom, indent=1) + "\n"
