# SPDX-License-Identifier: Apache-2.0
"""Build and install the native message path, which is optional, if Rust is available.

`install` does nothing if the installed module was built from the current sources; otherwise it
prints one line. With `--to-run`, which is for running a suite, it also keeps an installed wheel of
this version, and does not repeat a build that has failed. `lint` runs rustfmt and clippy, `test`
runs the tests of the crate and short fuzz tests, and `fuzz` passes mutated input to the native
readers.

Without cargo, or if cargo cannot build the module, the commands print the reason and do nothing
else, and the tests of the native path are skipped. Where they must not be skipped, as in CI, set
`ACCEL=yes`; every command then fails instead.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEMBER = ROOT / "libs/accel"
FUZZ = MEMBER / "fuzz"
CACHE = ROOT / ".cache/accel"
STAMP = Path(sys.prefix) / ".accel"
LOG = CACHE / "build.log"
CARGO_OLDEST = (1, 87)
NO_CARGO = "no cargo"
NOT_BUILT = "not built"
"""Contents of STAMP while the module is missing, instead of the digest of its sources."""


def cargo_fault() -> str:
    """Return why there is no cargo to build with, or an empty string; exit instead if `ACCEL=yes`
    requires one.
    """
    if shutil.which("cargo") is None:
        fault, found = "no cargo here", "there is no cargo in PATH"
    else:
        done = subprocess.run(
            ["cargo", "--version"], cwd=MEMBER, capture_output=True, text=True, check=False
        )
        match = re.match(r"cargo ((\d+)\.(\d+)\S*)", done.stdout)
        if match is None or (int(match[2]), int(match[3])) >= CARGO_OLDEST:
            return ""  # a cargo without a version gives its reason when it builds
        fault = found = f"cargo {match[1]} is older than 1.87"
    if is_required():
        raise SystemExit(
            f"accel: ACCEL=yes demands the native message path, but {found}: install Rust 1.87 or"
            " newer, or unset ACCEL to run on Python"
        )
    return fault


def sources() -> str:
    """Return a digest of all files that the module is built from."""
    digest = hashlib.sha256()
    for path in sorted(MEMBER.rglob("*")):
        name = path.relative_to(MEMBER)
        if path.is_file() and name.parts[0] in {"rust", "src", "Cargo.toml", "pyproject.toml"}:
            digest.update(f"{name}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def build_environment(crate: Path = MEMBER) -> dict[str, str]:
    """Return the environment of a build, which keeps cargo's output for the next build.

    The fuzz crate has a folder of its own: it needs the library with another feature, but under the
    same name, so cargo would confuse the two builds.
    """
    folder = "target" if crate == MEMBER else f"target-{crate.name}"
    return {**os.environ, "CARGO_TARGET_DIR": str(CACHE / folder)}  # noqa: TID251  # not ours


class BuildError(Exception):
    """The module cannot be built; the text gives the reason in one line."""


def build(out: Path) -> Path:
    """Build the wheel in a folder and return its path; raise BuildError if the build fails."""
    CACHE.mkdir(parents=True, exist_ok=True)
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "build", "--wheel", "--out-dir", out, MEMBER]
    if not uv.exists():  # it is a developer's tool; `make run` installs none
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", out, MEMBER]
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


def is_wheel_of_this_version() -> bool:
    """Return whether the installed module is from a wheel of the version of this checkout.

    STAMP has a digest only while the module is one that was built here.
    """
    is_ours = STAMP.exists() and STAMP.read_text(encoding="utf-8") not in {NO_CARGO, NOT_BUILT}
    project = tomllib.loads((MEMBER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        return not is_ours and version("cometmq-accel") == project["version"]
    except PackageNotFoundError:
        return False


def install(*, is_to_run: bool = False) -> None:
    """Install the module if its sources have changed; if it cannot be built, remove an outdated
    one.
    """
    wanted = sources()
    is_there = find_spec("cometmq.accel") is not None
    stamp = STAMP.read_text(encoding="utf-8") if STAMP.exists() else ""
    if is_there and (stamp == wanted or (is_to_run and is_wheel_of_this_version())):
        return
    if is_to_run and not is_there and stamp == NOT_BUILT and not is_required():
        print(
            "accel: the native message path could not be built, so the message path runs on Python:"
            f" see {LOG.relative_to(ROOT)}; make setup tries again"
        )
        return
    fault = cargo_fault()
    if not fault:
        print("accel: building the native message path (about a minute)", flush=True)
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
        print(f"accel: {fault}, so the message path runs on Python")
        wanted = NO_CARGO
    if is_there and wanted in {NO_CARGO, NOT_BUILT}:
        pip("uninstall", "cometmq-accel")
    STAMP.write_text(wanted, encoding="utf-8")


def pip(action: str, *what: str | Path) -> None:
    """Install or uninstall packages in this environment."""
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "pip", action, "--quiet", "--python", sys.executable]
    if not uv.exists():
        command = [sys.executable, "-m", "pip", action, "--quiet"]
        command += ["--yes"] if action == "uninstall" else []
        what = tuple("--force-reinstall" if word == "--reinstall" else word for word in what)
    subprocess.run([*command, *what], check=True)


def cargo(crate: Path, *steps: str) -> None:
    """Run cargo on a crate; if cargo is not installed, only print a line."""
    if fault := cargo_fault():
        print(f"accel: {fault}, so the native message path is not checked")
        return
    if not is_required() and not is_buildable():
        print("accel: cargo cannot build here, so the native message path is not checked")
        return
    for step in steps:
        print(f"accel: cargo {step.split()[0]}; its first build takes a minute or two", flush=True)
        environment = build_environment(crate)
        subprocess.run(["cargo", *step.split()], cwd=crate, env=environment, check=True)


def main() -> None:
    """Run the command named on the command line."""
    parser = argparse.ArgumentParser(description="The native message path.")
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser(
        "install", help="build it if cargo is there and its sources changed"
    )
    installing.add_argument("--to-run", action="store_true", help="keep an installed wheel")
    commands.add_parser("lint", help="rustfmt and clippy")
    commands.add_parser("test", help="the tests of the crate")
    fuzzing = commands.add_parser("fuzz", help="mutated input through the native readers")
    fuzzing.add_argument("inputs", type=int)
    options = parser.parse_args()
    if options.command == "install":
        install(is_to_run=options.to_run)
    elif options.command == "lint":
        lint = "clippy --quiet --release --all-targets"
        cargo(MEMBER, "fmt --check", f"{lint} --features python -- --deny warnings")
        cargo(FUZZ, "fmt --check", f"{lint} -- --deny warnings")
    elif options.command == "test":
        cargo(MEMBER, "test --quiet --release")
        cargo(FUZZ, "test --quiet --release")
    else:
        cargo(FUZZ, f"run --quiet --release -- {options.inputs}")


if __name__ == "__main__":
    main()
