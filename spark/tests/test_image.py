# SPDX-License-Identifier: Apache-2.0
"""The image's entrypoint starts the right program in each kind of container."""

import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy" / "spark"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_EXECUTOR_POD_NAME": "lag-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    **{f"SPARK_JAVA_OPT_{index}": f"-Dnumber={index} and a space" for index in range(12)},
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Create a folder with a fake tini that prints its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("tini", 'printf "%s\\n" "$@"'), ("java", "exit 9")):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return folder


def started(programs: Path, *arguments: str, **values: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "SPARK_HOME": "/spark", **values}
    return subprocess.run(
        [DEPLOY / "entrypoint.sh", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_command_is_started_unchanged(programs: Path) -> None:
    done = started(programs, "cometmq-lag", "report", "--path", "a b")
    assert done.stdout.splitlines() == ["-s", "--", "cometmq-lag", "report", "--path", "a b"]


def test_driver_runs_spark_submit_in_client_mode(programs: Path) -> None:
    main = "local:///opt/cometmq/lag_main.py"
    done = started(programs, "driver", "--class", "X", main, SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    assert done.stdout.splitlines()[2:] == [
        "/spark/bin/spark-submit",
        "--conf",
        "spark.driver.bindAddress=10.0.0.2",
        "--conf",
        "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.2",
        "--deploy-mode",
        "client",
        "--class",
        "X",
        main,
    ]


def test_executor_options_keep_order_and_spaces(programs: Path) -> None:
    words = started(programs, "executor", **EXECUTOR).stdout.splitlines()
    assert words[2] == str(programs / "java")
    assert words[3:15] == [f"-Dnumber={index} and a space" for index in range(12)]
    assert words[15:17] == ["-Xms1024m", "-Xmx1024m"]
    main = words.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    told = dict(zip(words[main + 1 :: 2], words[main + 2 :: 2], strict=True))
    assert told == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.9",
        "--resourceProfileId": "0",
        "--podName": "lag-exec-3",
    }


@pytest.mark.parametrize("name", ["SPARK_DRIVER_URL", "SPARK_EXECUTOR_MEMORY"])
def test_missing_variable_is_named(programs: Path, name: str) -> None:
    values = {key: value for key, value in EXECUTOR.items() if key != name}
    done = started(programs, "executor", **values)
    assert done.returncode != 0
    assert name in done.stderr


def test_missing_command_is_an_error(programs: Path) -> None:
    done = started(programs)
    assert done.returncode == 2
    assert "cometmq-lag" in done.stderr
