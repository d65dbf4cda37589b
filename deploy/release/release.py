# SPDX-License-Identifier: Apache-2.0
"""Make the files of a release from a clean checkout: `make release VERSION=0.2.0`.

The time in every file is that of the commit (or SOURCE_DATE_EPOCH), so the same commit gives the
same bytes, on every machine with the same tools. `ready` prepares the commit: it sets the version
of every member, and dates the section Unreleased of CHANGELOG.md.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import contents
import debian
import native_wheels
from archives import chart, pack
from notes import dated, release_notes
from wheels import (
    ROOT,
    build_package,
    buildable,
    git,
    is_native,
    members,
    public_address,
    semantic,
    set_version,
    stage,
    staging,
    workspace_version,
)

CHANGELOG: Final = ROOT / "CHANGELOG.md"
SYSTEMD: Final = ROOT / "deploy/systemd"
SUMS: Final = "SHA256SUMS"
OF_CHECKOUTS: Final = "uv-build"
"""The package of the run-time lock that only editable installations need."""


def check(version: str, *, is_final: bool) -> None:
    """Exit unless the checkout is clean and has the version."""
    if (found := workspace_version()) != version:
        raise SystemExit(
            f"release: the members have version {found}, not {version}: run make release-ready"
            f" VERSION={version}, commit, and try again"
        )
    if changed := git("status", "--porcelain"):
        raise SystemExit(
            "release: the checkout has changes that are not committed, so nobody could make the"
            f" same files again:\n{changed}"
        )
    if is_final and not release_notes(_changelog(), version, epoch=0)[1]:
        raise SystemExit(
            f"release: CHANGELOG.md has no section '## {version} - DATE': run make release-ready"
            f" VERSION={version}, and commit"
        )


def _changelog() -> str:
    return CHANGELOG.read_text(encoding="utf-8")


def packages(out: Path, targets: Collection[native_wheels.Target], *, epoch: int) -> None:
    """Build the wheels and source packages of all members."""
    address = public_address(git("remote", "get-url", "origin"))
    commit = git("rev-parse", "HEAD") or "HEAD"
    machines = {target.machine for target in targets}
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)  # noqa: TID251  # for uv and maturin
    print("release: building wheels and source packages, about a minute", flush=True)
    with staging() as folder:
        for member in members():
            target = folder / member.name
            if is_native(member) and not targets:
                continue
            stage(member, target, address=address, commit=commit, machines=machines)
            if is_native(member):
                build_package("--sdist", "--out-dir", out, target)
                native_wheels.build(target, out, targets, epoch=epoch)
            else:
                build_package("--sdist", "--wheel", "--out-dir", out, target)
    (out / ".gitignore").unlink(missing_ok=True)  # written by uv


def native_targets(
    names: Collection[str],
) -> tuple[list[native_wheels.Target], list[str]]:
    """Return the targets among `names` that can be built here, and why the others cannot."""
    if not names:
        return [], []
    if not any(is_native(member) for member in buildable()):
        return [], ["no wheel of cometmq-accel: there is no cargo that can build it (Rust 1.87)"]
    found = native_wheels.available(names)
    triples = {name: native_wheels.TARGETS[name].triple for name in names}
    return found, [
        f"no wheel of cometmq-accel for {name}: Rust's standard library is missing: rustup target"
        f" add {triple}"
        for name, triple in triples.items()
        if triple not in {target.triple for target in found}
    ]


def run_time_lock() -> str:
    """Return the third-party packages that a release needs, with their digests."""
    kept = [one for one in _blocks("requirements-runtime.lock") if _name(one) != OF_CHECKOUTS]
    return "\n".join(kept) + "\n"


def extra_lock(member: str) -> str:
    """Return the same for a release with an extra: also the packages that `member` needs.

    They are those of the developers' lock, whose comments name the packages that need each one.
    """
    known = {_name(one): one for one in _blocks("requirements-runtime.lock")}
    others = {
        name: one for one in _blocks("requirements.lock") if (name := _name(one)) not in known
    }
    chosen = {member}
    while found := {
        name for name, one in others.items() if name not in chosen and chosen & _needed_by(one)
    }:
        chosen |= found
    lines = [one for name, one in sorted(others.items()) if name in chosen]
    return run_time_lock() + "\n".join(lines) + "\n"


def _blocks(lock: str) -> list[str]:
    return re.split(r"\n(?=\S)", (ROOT / lock).read_text(encoding="utf-8").strip())


def _name(block: str) -> str:
    return block.partition("==")[0]


def _needed_by(block: str) -> set[str]:
    return set(re.findall(r"^ +#(?: via)? +([\w.-]+)$", block, flags=re.MULTILINE))


def host_files(out: Path, version: str, *, epoch: int) -> None:
    """Write the archive with the units of systemd."""
    marker = out / "VERSION"
    marker.write_text(f"{version}\n", encoding="utf-8")
    folder = f"cometmq-systemd-{version}"
    files = [*sorted(SYSTEMD.iterdir()), marker, ROOT / "LICENSE"]
    pack(out / f"{folder}.tar.gz", [(f"{folder}/{it.name}", it) for it in files], epoch=epoch)
    marker.unlink()


def debian_packages(
    out: Path, version: str, targets: Collection[native_wheels.Target], *, epoch: int
) -> list[str]:
    """Write a Debian package for each architecture that has a wheel, or for this one.

    Return why there is none.
    """
    if reason := debian.fault():
        return [f"no Debian package: {reason}"]
    with_glibc = {it.machine for it in targets if it.triple.endswith("-gnu")}
    for machine in sorted(with_glibc or {platform.machine()} & debian.ARCHITECTURES.keys()):
        debian.package(out, version, machine, epoch=epoch)
    return []


def images(out: Path, words: Sequence[str], *, epoch: int) -> None:
    """Build the images and write them as OCI archives, if this machine has a container engine."""
    if reason := _engine_fault():
        print(f"release: no images: {reason}", file=sys.stderr)
        return
    folder = out.with_name(f"{out.name}-images")
    command: list[str | Path] = [
        sys.executable, ROOT / "deploy/images/build_images.py", "suite", "operator",
        "--out", folder, "--epoch", str(epoch), "--oci", out, *words,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    shutil.rmtree(folder)


def _engine_fault() -> str:
    """Return why no image can be built here, or an empty string."""
    if shutil.which("docker") is None:
        return "they need a Docker engine: the command `docker` is missing"
    done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"docker info: {done.stderr.strip()}"


def sums(out: Path) -> str:
    """Return the digests of all files of a release, as `sha256sum --check` reads them."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(out.iterdir())
        if path.name != SUMS
    ]
    return "".join(lines)


def make(
    out: Path,
    version: str,
    names: Collection[str],
    *,
    epoch: int,
    image_words: Sequence[str] | None = None,
) -> list[str]:
    """Write all files of a release into `out`, which is emptied first; return what is missing.

    `image_words` are options of `build_images.py`; without them, there are no images.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    targets, missing = native_targets(names)
    tell(missing)
    packages(out, targets, epoch=epoch)
    for folder in sorted((ROOT / "deploy/helm").glob("*/Chart.yaml")):
        chart(folder.parent, out, semantic(version), epoch=epoch)
    host_files(out, version, epoch=epoch)
    lock = run_time_lock()
    (out / "requirements.txt").write_text(lock, encoding="utf-8")
    with_ha = extra_lock("cometmq-group")
    (out / "requirements-ha.txt").write_text(with_ha, encoding="utf-8")
    missing += debian_packages(out, version, targets, epoch=epoch)
    if image_words is not None:
        images(out, image_words, epoch=epoch)
    listed = contents.own_packages(sorted(out.glob("*.whl")))
    listed += contents.locked_packages(with_ha)
    if any("accel" in one.name for one in out.glob("*.whl")):
        crates = (ROOT / "libs/accel/Cargo.lock").read_text(encoding="utf-8")
        listed += contents.locked_crates(crates)
    bill = contents.document(version, listed, epoch=epoch)
    (out / f"cometmq-{version}.cdx.json").write_text(bill, encoding="utf-8")
    notes, is_dated = release_notes(_changelog(), version, epoch=epoch)
    (out / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    if not is_dated:
        print("release: the notes are those of Unreleased, because CHANGELOG.md has no date yet")
    (out / SUMS).write_text(sums(out), encoding="utf-8")
    return missing


def tell(missing: Sequence[str]) -> None:
    """Print what is missing in a release: before the long builds, and at their end."""
    for reason in missing:
        print(f"release: {reason}", file=sys.stderr, flush=True)


def ready(version: str, day: str) -> None:
    """Set the version of all members, and date the section Unreleased."""
    text = dated(_changelog(), version, day)
    set_version(version)
    CHANGELOG.write_text(text, encoding="utf-8")
    print(f"release: now run make generate, commit, and tag: git tag -s v{version}")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="The files of a release of CometMQ.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make all files")
    making.add_argument("version")
    making.add_argument("--out", type=Path, default=ROOT / "dist/release")
    making.add_argument(
        "--native", nargs="*", choices=[[], *native_wheels.TARGETS],
        default=list(native_wheels.TARGETS), help="wheels of cometmq-accel; default: all",
    )  # fmt: skip
    making.add_argument("--final", action="store_true", help="the changelog must have a date")
    making.add_argument("--changed", action="store_true", help="allow uncommitted changes")
    making.add_argument(
        "--images", nargs=argparse.REMAINDER, metavar="OPTION",
        help="also build the images and write them as OCI archives; everything that follows is"
        " passed to build_images.py, such as --base-image NAME",
    )  # fmt: skip
    preparing = commands.add_parser("ready", help="set the version and date the changelog")
    preparing.add_argument("version")
    preparing.add_argument("--day", default=datetime.now(UTC).strftime("%Y-%m-%d"))
    return parser.parse_args(arguments)


def main() -> None:
    """Run the command named on the command line."""
    options = parsed()
    if options.command == "ready":
        ready(options.version, options.day)
        return
    if not options.changed:
        check(options.version, is_final=options.final)
    given = os.getenv("SOURCE_DATE_EPOCH")
    epoch = int(given or git("log", "-1", "--format=%ct") or 0)
    missing = make(
        options.out, options.version, options.native, epoch=epoch, image_words=options.images
    )
    for path in sorted(options.out.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    tell(missing)


if __name__ == "__main__":
    main()
