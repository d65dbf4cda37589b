# SPDX-License-Identifier: Apache-2.0
"""Programs with Spring and Camel, and OpenTelemetry's agent, behind `tests/peers/integrations`."""

import os
from pathlib import Path
from typing import Final

from cometmq.peers.clients.programs import Running
from cometmq.peers.java import home_options, java_home
from cometmq.peers.java.maven import JVM_OPTIONS, program, project_class_path
from cometmq.peers.paths import CACHE, ROOT
from cometmq.peers.processes import Child

PROJECT: Final = ROOT / "tests" / "peers" / "integrations"
AGENT: Final = "opentelemetry-javaagent"
SPANS: Final = {"otel.traces.exporter": "console", "otel.metrics.exporter": "none",
                "otel.logs.exporter": "none"}  # fmt: skip


def start_integration(
    main_class: str, log_path: Path, *, namesrv: str, topic: str, group: str, count: int
) -> Running:
    """Start a program that sends `count` messages and receives without end."""
    properties = {
        "rocketmq.name-server": namesrv,
        "rocketmq.producer.group": f"{group}Producer",
        "peers.topic": topic,
        "peers.group": group,
        "peers.count": count,
    }
    command = [
        *(program("java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *JVM_OPTIONS,
        *home_options(java_home(CACHE)),
        *(f"-D{name}={value}" for name, value in properties.items()),
        *("-cp", integrations_class_path(), f"io.cometmq.peers.{main_class}"),
    ]
    return Running(Child(main_class, command, log_path=log_path))


def agent_options() -> list[str]:
    """Return the options with which a JVM prints a line for each span."""
    (jar,) = (it for it in integrations_class_path().split(os.pathsep) if AGENT in it)
    return [f"-javaagent:{jar}", *(f"-D{name}={value}" for name, value in SPANS.items())]


def integrations_class_path() -> str:
    """Return the class path of the programs; built on first use and after changes."""
    return project_class_path(PROJECT)
