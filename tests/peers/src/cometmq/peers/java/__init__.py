# SPDX-License-Identifier: Apache-2.0
"""Runs Apache RocketMQ's own name server, brokers and `mqadmin` on loopback."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cometmq.peers.cluster import BrokerPlace, Cluster, Layout
from cometmq.peers.java.maven import (
    JVM_OPTIONS,
    ROCKETMQ_5_VERSION,
    ROCKETMQ_VERSION,
    program,
    server_class_path,
)
from cometmq.peers.paths import DATA

NAMESRV_HEAP: Final = "256m"
MQADMIN_TIMEOUT_S: Final = 120.0
_LOGBACK_FILES: Final = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")
_LOGBACK_5: Final = "rmq.logback.xml"  # RocketMQ 5 contains logback under names of its own


class JavaCluster(Cluster):
    """RocketMQ 4.9.4 from Maven Central, with the flags that JDK 17 needs."""

    programs = "servers"
    version = ROCKETMQ_VERSION

    def __init__(
        self,
        directory: Path,
        broker_conf: Mapping[str, object] | None = None,
        *,
        namesrv_conf: Mapping[str, object] | None = None,
        transaction_conf: Mapping[str, object] | None = None,
        broker_count: int = 1,
        layout: Layout | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = ("-XX:+UseG1GC",),
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """`properties` are system properties of both programs."""
        super().__init__(
            directory,
            {**(broker_conf or {}), **(transaction_conf or {})},
            namesrv_conf=namesrv_conf,
            transaction_conf=transaction_conf,
            broker_count=broker_count,
            layout=layout,
        )
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._properties = dict(properties or {})
        self._class_path = server_class_path(self.version, self.programs)
        self._home = java_home(directory)

    def mqadmin(
        self, arguments: Sequence[str], *, timeout_s: float = MQADMIN_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one `mqadmin` command against this cluster in a separate JVM."""
        return mqadmin(arguments, self.namesrv_addr, timeout_s=timeout_s, version=self.version)

    def _namesrv_command(self, conf_path: Path) -> list[str]:
        main = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf_path))
        return [*self._java(NAMESRV_HEAP, ()), *main]

    def _broker_command(self, conf_path: Path) -> list[str]:
        main = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf_path))
        return [*self._java(self._heap, self._jvm_options), *main]

    def _ready_text(self) -> str:
        return "boot success"

    def _java(self, heap: str, options: Sequence[str]) -> list[str]:
        return [
            program("java"),
            f"-Xms{heap}",
            f"-Xmx{heap}",
            *options,
            *JVM_OPTIONS,
            *(f"-D{name}={value}" for name, value in self._properties.items()),
            *home_options(self._home),
            "-cp",
            self._class_path,
        ]


class PatientJavaCluster(JavaCluster):
    """Java servers for tests on loaded machines: they do not reject requests that had to wait.

    By default a broker answers code 2 if a request waited for 200 ms or a write takes a second.
    """

    def _broker_properties(self, place: BrokerPlace) -> dict[str, object]:
        return {
            "brokerFastFailureEnable": False,
            "osPageCacheBusyTimeOutMills": 60_000,
            **super()._broker_properties(place),
        }


class Java5Cluster(PatientJavaCluster):
    """RocketMQ 5.5.0's name server and broker, without its proxy."""

    version = ROCKETMQ_5_VERSION


def java_home(directory: Path) -> Path:
    """Create a `rocketmq.home.dir`, in which the programs require their log settings.

    mqadmin reads them again at each command, and prints nothing if they are incomplete. Processes
    share the folder of tools, so a file is only ever replaced as a whole.
    """
    home = directory / "home"
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    text_4 = (DATA / "logback.xml").read_bytes()
    text_5 = text_4.replace(b"ch.qos", b"org.apache.rocketmq.logging.ch.qos")
    for name, text in {**dict.fromkeys(_LOGBACK_FILES, text_4), _LOGBACK_5: text_5}.items():
        path = conf / name
        if not path.exists() or path.read_bytes() != text:
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            fresh.write_bytes(text)
            fresh.replace(path)
    return home


def home_options(home: Path) -> list[str]:
    """Return the options of a JVM that uses this folder for settings, logs and user data."""
    return [
        f"-Drocketmq.home.dir={home}",
        f"-Drmq.logback.configurationFile={home / 'conf' / _LOGBACK_5}",
        f"-Duser.home={home}",
    ]


def mqadmin_command(
    arguments: Sequence[str],
    namesrv_addr: str,
    *,
    home: Path | None = None,
    version: str = ROCKETMQ_VERSION,
) -> list[str]:
    """Return the command line of one `mqadmin` command; `home` may contain tools.yml."""
    class_path = server_class_path(version)
    home = home or java_home(Path(class_path.split(":", 1)[0]).parent)
    return [
        program("java"),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        *JVM_OPTIONS,
        *home_options(home),
        f"-Drocketmq.namesrv.addr={namesrv_addr}",
        "-cp",
        class_path,
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        *arguments,
    ]


def mqadmin(
    arguments: Sequence[str],
    namesrv_addr: str,
    *,
    timeout_s: float = MQADMIN_TIMEOUT_S,
    home: Path | None = None,
    version: str = ROCKETMQ_VERSION,
) -> subprocess.CompletedProcess[str]:
    """Run one `mqadmin` command in a separate JVM (1.5 to 3 s)."""
    return subprocess.run(
        mqadmin_command(arguments, namesrv_addr, home=home, version=version),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
