# SPDX-License-Identifier: Apache-2.0
"""Builds the manifests of pods that wait for commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Files(NamedTuple):
    """A ConfigMap with files, mounted at `mount_path` of a pod of the same name."""

    mount_path: str
    texts: Mapping[Path, str]


def waiting_pod(
    name: str,
    image: str,
    *,
    files: Files | None = None,
    env: Mapping[str, str] | None = None,
    node: str = "",
) -> list[dict[str, Any]]:
    """Return the manifests of a pod in which commands are executed, and of its ConfigMap.

    If `node` is empty, the scheduler chooses one.
    """
    container: dict[str, Any] = {
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "securityContext": {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **({"nodeName": node} if node else {}),
    }  # fmt: skip
    manifests = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]
    if files is None:
        return manifests
    keys = {path: path.as_posix().replace("/", ".") for path in files.texts}
    items = [{"key": key, "path": path.as_posix()} for path, key in keys.items()]
    container["volumeMounts"].append({"name": "files", "mountPath": files.mount_path})
    spec["volumes"].append({"name": "files", "configMap": {"name": name, "items": items}})
    data = {keys[path]: text for path, text in files.texts.items()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return [body, *manifests]
