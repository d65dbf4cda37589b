# SPDX-License-Identifier: Apache-2.0
"""Which builds of the native module the broker accepts."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from cometmq.broker import native
from cometmq.broker.lanes.lane import open_lane
from cometmq.broker.native import INTERFACE, IS_OUTDATED, OUTDATED
from cometmq.broker.testing.logs import RecordingLog
from cometmq.broker.testing.scripted import ScriptedBroker

SIGNATURES = Path(__file__).resolve().parents[3] / "libs/accel/src/cometmq/accel/_native.pyi"

STARTED_WITH = """
import sys, types

stale = types.ModuleType("cometmq.accel")
{facts}
sys.modules["cometmq.accel"] = stale

from cometmq.broker import native
from cometmq.broker.settings import BrokerSettings

print(native.accel, native.IS_BUILT, native.reason_without(BrokerSettings()))
"""


def test_the_checksum_is_that_of_the_signatures() -> None:
    found = zlib.crc32(SIGNATURES.read_bytes())
    assert found == INTERFACE, f"set INTERFACE in native.py to 0x{found:08X}"


def test_the_installed_module_fits() -> None:
    assert not IS_OUTDATED, "run make setup"


@pytest.mark.parametrize("facts", ["", f"stale.INTERFACE = {INTERFACE ^ 1}"])
def test_a_module_built_from_other_sources_is_not_used(facts: str) -> None:
    program = STARTED_WITH.format(facts=facts)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"None False {OUTDATED}\n"


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_the_broker_says_how_to_repair_an_outdated_module(
    monkeypatch: pytest.MonkeyPatch, *, is_enabled: bool
) -> None:
    monkeypatch.setattr(native, "IS_OUTDATED", True)
    broker = ScriptedBroker(nativeLaneEnable=str(is_enabled).lower()).broker
    broker.log = log = RecordingLog()
    assert open_lane(broker) is None
    assert len(log.named("native.outdated")) == is_enabled
    assert ("make setup" in broker.process.send_path) is is_enabled
