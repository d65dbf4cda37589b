# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.peers.scale.node CLUSTER FOLDER POD...`: runs brokers, as a node runs pods.

Like a kubelet, a node waits for the objects of each pod, starts its broker with the settings that
the operator rendered and the group's key, and reports the pod as ready. Two settings differ from a
cluster: files of the log are small, and there is no name server. A node ends with SIGKILL; nothing
is cleaned up.
"""

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.operator.api import KubeApi
from cometmq.operator.api_types.security_sections import GROUP_KEY_FILE
from cometmq.operator.broker_groups.render import CONFIG_FILE
from cometmq.peers.scale.cluster import Cluster, given_cluster
from cometmq.runtime import logging, properties
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

OBJECTS_S: Final = 600.0
"""How long the operator and the controllers may take to create the objects of all pods."""
POLL_S: Final = 1.0
SMALL: Final = {"mappedFileSizeCommitLog": "1048576", "mappedFileSizeConsumeQueue": "60000"}
READY: Final = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}

log = logging.get("node")


async def main(stop: Stop) -> None:
    cluster, folder, pods = given_cluster(), Path(sys.argv[2]), sys.argv[3:]
    async with KubeApi(cluster.server()) as api, asyncio.timeout(OBJECTS_S):
        for pod in pods:
            await start_broker(cluster, api, pod, folder / pod)
        for pod in pods:
            await report_ready(cluster, api, pod)
    log.info("node.ready", pods=len(pods))
    stop.serving()
    await stop.wait()


async def start_broker(cluster: Cluster, api: KubeApi, pod: str, folder: Path) -> None:
    group, _, ordinal = pod.rpartition("-")
    config = await found(lambda: api.get("ConfigMap", cluster.namespace, f"{group}-config"))
    secret = await found(lambda: api.get("Secret", cluster.namespace, f"{group}-group-key"))
    key_file = written(folder / GROUP_KEY_FILE, base64.b64decode(secret["data"][GROUP_KEY_FILE]))
    given = {
        **properties.parse(config["data"][CONFIG_FILE]),
        **SMALL,
        "groupKeyFile": str(key_file),
        **cluster.settings(group, int(ordinal), folder),
    }
    app = BrokerApp(
        load(BrokerSettings, prefix="COMETMQ_BROKER", env={}, cli=given),
        log=logging.get(pod),
        clock=SystemClock(),
        record=cluster.record(group),
    )
    await app.start()


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


async def report_ready(cluster: Cluster, api: KubeApi, pod: str) -> None:
    await found(lambda: api.get("Pod", cluster.namespace, pod))
    metadata = {"namespace": cluster.namespace, "name": pod}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": READY}
    await api.apply(body, part="Status")


async def found(call: Callable[[], Awaitable[dict[str, Any] | None]]) -> dict[str, Any]:
    """Repeat a call until the object exists; the caller sets the deadline."""
    while (answer := await call()) is None:  # noqa: ASYNC110  # an object has no event here
        await asyncio.sleep(POLL_S)
    return answer


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
