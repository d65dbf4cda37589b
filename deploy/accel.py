# SPDX-License-Identifier: Apache-2.0
"""Build and install the native message path, which is optional, if Rust is available.

`install` does nothing if the installed module was built from the current sources; otherwise it
prints one line. `lint` runs rustfmt and clippy, `test` runs the tests of the crate, and `fuzz`
passes mutated input to the native readers.

Without cargo, or if cargo cannot build the module, the commands print the reason and do nothing
else, and the tests of the native path are skipped. Where they must not be skipped, as in CI, set
`ACCEL=yes`; every command then fails instead.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEMBER = ROOT / "libs/accel"
CACHE = ROOT / ".cache/accel"
STAMP = Path(sys.prefix) / ".accel"
LOG = CACHE / "build.log"
NO_CARGO = "no cargo"
NOT_BUILT = "not built"
"""Contents of STAMP while the module is missing, instead of the digest of its sources."""


def has_cargo() -> bool:
    """Return whether cargo is installed; exit if it is missing although `ACCEL=yes` requires it."""
    if shutil.which("cargo") is not None:
        return True
    if is_required():
        raise SystemExit(
            "accel: ACCEL=yes demands the native message path, but there is no cargo in PATH:"
            " install Rust 1.87 or newer, or unset ACCEL to run on Python"
        )
    return False


def sources() -> str:
    """Return a digest of all files that the module is built from."""
    digest = hashlib.sha256()
    for path in sorted(MEMBER.rglob("*")):
        name = path.relative_to(MEMBER)
        if path.is_file() and name.parts[0] in {"rust", "src", "Cargo.toml", "pyproject.toml"}:
            digest.update(f"{name}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def build_environment() -> dict[str, str]:
    """Return the environment of a build, which keeps cargo's output for the next build."""
    return {**os.environ, "CARGO_TARGET_DIR": str(CACHE / "target")}  # noqa: TID251  # not ours


class BuildError(Exception):
    """The module cannot be built; the text gives the reason in one line."""


def build(out: Path) -> Path:
    """Build the wheel in a folder and return its path; raise BuildError if the build fails."""
    CACHE.mkdir(parents=True, exist_ok=True)
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "build", "--wheel", "--out-dir", out, MEMBER]
    with LOG.open("wb") as log:
        done = subprocess.run(command, env=build_environment(), stdout=log, stderr=log, check=False)
    if done.returncode:
        raise BuildError(reason_in(LOG.read_text(encoding="utf-8", errors="replace")))
    (wheel,) = out.glob("cometmq_accel-*.whl")
    return wheel


def reason_in(log: str) -> str:
    """Return the first line of a build's output that gives the cause of its failure."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reported = (
        line for line in lines
        if line.lower().startswith("error") and not line.startswith("error: Failed to build")
    )  # fmt: skip
    return next(reported, lines[-1] if lines else "the build ended without a message")


def is_required() -> bool:
    """Return whether a missing native message path is an error."""
    return os.getenv("ACCEL") == "yes"


def is_buildable() -> bool:
    """Return whether the last `install` could build the module."""
    return not STAMP.exists() or STAMP.read_text(encoding="utf-8") != NOT_BUILT


def install() -> None:
    """Install the module if its sources have changed; if it cannot be built, remove an outdated
    one.
    """
    wanted = sources()
    is_there = find_spec("cometmq.accel") is not None
    stamp = STAMP.read_text(encoding="utf-8") if STAMP.exists() else ""
    if is_there and stamp == wanted:
        return
    if has_cargo():
        print("accel: building the native message path (about half a minute)", flush=True)
        wheels = CACHE / "wheels" / wanted
        try:
            wheel = next(wheels.glob("*.whl"), None) or build(wheels)
        except BuildError as error:
            text = f"accel: the native message path cannot be built ({error})"
            if is_required():
                raise SystemExit(f"{text}: see {LOG.relative_to(ROOT)}") from error
            print(f"{text}, so the message path runs on Python: see {LOG.relative_to(ROOT)}")
            wanted = NOT_BUILT
        else:
            pip("install", "--no-deps", "--reinstall", wheel)
    elif stamp == NO_CARGO and not is_there:
        return
    else:
        print("accel: no cargo here, so the message path runs on Python")
        wanted = NO_CARGO
    if is_there and wanted in {NO_CARGO, NOT_BUILT}:
        pip("uninstall", "cometmq-accel")
    STAMP.write_text(wanted, encoding="utf-8")


def pip(action: str, *what: str | Path) -> None:
    """Install or uninstall packages in this environment."""
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "pip", action, "--quiet", "--python", sys.executable]
    subprocess.run([*command, *what], check=True)


def cargo(*steps: str) -> None:
    """Run cargo on the crate; if cargo is not installed, only print a line."""
    if not has_cargo():
        print("accel: no cargo here, so the native message path is not checked")
        return
    if not is_required() and not is_buildable():
        print("accel: cargo cannot build here, so the native message path is not checked")
        return
    for step in steps:
        subprocess.run(["cargo", *step.split()], cwd=MEMBER, env=build_environment(), check=True)


def main() -> None:
    """Run the command named on the command line."""
    parser = argparse.ArgumentParser(description="The native message path.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build it if cargo is there and its sources changed")
    commands.add_parser("lint", help="rustfmt and clippy")
    commands.add_parser("test", help="the tests of the crate")
    fuzzing = commands.add_parser("fuzz", help="mutated input through the native readers")
    fuzzing.add_argument("inputs", type=int)
    options = parser.parse_args()
    if options.command == "install":
        install()
    elif options.command == "lint":
        cargo(
            "fmt --check",
            "clippy --quiet --release --features python --all-targets -- --deny warnings",
        )
    elif options.command == "test":
        cargo("test --quiet --release")
    else:
        cargo(f"run --quiet --release --bin fuzz -- {options.inputs}")


if __name__ == "__main__":
    main()
