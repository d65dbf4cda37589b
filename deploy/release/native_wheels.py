# SPDX-License-Identifier: Apache-2.0
"""Builds the wheels of `cometmq-accel` for many Linux systems, with zig as the linker.

zig brings the libraries of old systems, so a wheel built here runs with glibc 2.17 or musl 1.2.
Rust's standard library must be there for each target (`rustup target add`); other targets are left
out.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from wheels import ROOT, reproducible_environment

HERE: Final = Path(__file__).parent
TOOLS: Final = ROOT / ".cache/release/tools"
LOCK: Final = HERE / "requirements.lock"


class Target(NamedTuple):
    """A platform that has a wheel."""

    machine: str
    triple: str
    compatibility: str
    """The platform tag of the wheel."""


TARGETS: Final = {
    f"{kind}-{machine}": Target(machine, f"{machine}-unknown-linux-{library}", tag)
    for kind, library, tag in (
        ("manylinux", "gnu", "manylinux2014"),
        ("musllinux", "musl", "musllinux_1_2"),
    )
    for machine in ("x86_64", "aarch64")
}


def available(names: Collection[str]) -> list[Target]:
    """Return the given targets whose standard library is installed."""
    done = subprocess.run(
        ["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True
    )
    folder = Path(done.stdout.strip()) / "lib/rustlib"
    return [
        target
        for name, target in TARGETS.items()
        if name in names and any(folder.glob(f"{target.triple}/lib/libstd-*"))
    ]


def tools() -> Path:
    """Return the programs of an environment with maturin and zig, which is created once."""
    python = TOOLS / "bin/python"
    stamp = TOOLS / ".lock"
    wanted = LOCK.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print("release: installing maturin and zig (100 MB) into .cache/release", flush=True)
        venv.create(TOOLS, clear=True, with_pip=False)
        uv = Path(sys.executable).with_name("uv")
        words = ("pip", "install", "--quiet", "--require-hashes", "--requirement", LOCK)
        subprocess.run([uv, *words, "--python", python], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python.parent


def build(source: Path, out: Path, targets: Collection[Target], *, epoch: int) -> None:
    """Build a wheel for each target into `out`."""
    programs = tools()
    environment = {
        **reproducible_environment(),
        "SOURCE_DATE_EPOCH": str(epoch),
        "PATH": f"{programs}:{os.environ['PATH']}",  # noqa: TID251  # not ours
        "VIRTUAL_ENV": str(TOOLS),
    }
    for target in targets:
        command: list[str | Path] = [programs / "maturin", "build", "--quiet", "--release"]
        command += ["--locked", "--zig", "--target", target.triple, "--out", out]
        command += ["--compatibility", target.compatibility]
        print(f"release: cometmq-accel for {target.triple}, about two minutes", flush=True)
        subprocess.run(command, cwd=source, env=environment, check=True)
