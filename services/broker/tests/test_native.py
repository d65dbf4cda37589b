# SPDX-License-Identifier: Apache-2.0
"""Which builds of the native module the broker accepts."""

import subprocess
import sys
import zlib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from cometmq.broker import native
from cometmq.broker.lanes.lane import open_lane
from cometmq.broker.native import INTERFACE, IS_BUILT, IS_OUTDATED, OUTDATED
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.scripted import ScriptedBroker

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


def test_a_broker_starts_without_what_it_rarely_needs() -> None:
    program = (
        "import sys, cometmq.broker.app\n"
        "from cometmq.broker import native\n"
        "from cometmq.broker.settings import BrokerSettings\n"
        "native.reason_without(BrokerSettings())\n"
        "print([name for name in ('importlib.metadata', 'email', 'h11') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.skipif(not IS_BUILT, reason="needs cometmq-accel")
def test_a_module_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = version("cometmq-accel")
    monkeypatch.setattr(native, "VERSION", "0.0.1")
    found = native._version_mismatch.__wrapped__()
    assert found == f"cometmq-accel {installed} does not match the broker's version 0.0.1"


@pytest.mark.skipif(not IS_BUILT, reason="needs cometmq-accel")
def test_metadata_in_an_unusual_place_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moved = SimpleNamespace(__path__=[str(tmp_path / "cometmq/accel")])
    monkeypatch.setattr(native, "accel", moved)
    assert native._version_mismatch.__wrapped__() is None
    (tmp_path / "cometmq_accel-0.0.1.dist-info").mkdir()
    monkeypatch.setattr(native, "VERSION", "0.0.1")
    assert native._version_mismatch.__wrapped__() is None


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
