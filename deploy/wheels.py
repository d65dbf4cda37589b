# SPDX-License-Identifier: Apache-2.0
"""Build the wheels of all members, and keep their versions equal.

The version is defined once, in the repository's `pyproject.toml`: `version` copies it to the
members and to the pins between them. uv_build does not support computed metadata, so each member's
file contains both, and `tests/packages/test_wheels.py` compares them.

No file in the repository contains the repository's address. `build` takes it from the clone
(`git remote`) or from `--repository`, adds the project URLs, and turns the relative links of a
README into links to the commit that was built. If there is no address, no URLs are added, and links
become plain text.

The wheel of `cometmq` requires `cometmq-accel` on the platforms whose native wheels are built with
it, so that installing it brings the native path. The requirement is added here and not in the
member's file, because a checkout must be installable without Rust.
"""

import argparse
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from accel import build_environment, is_buildable, is_required

ROOT = Path(__file__).resolve().parents[1]
META = "cometmq"
IMAGE = re.compile(r"\b(cometmq(?:-operator|-spark)?):\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?(?![\w.])")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def members(root: Path = ROOT) -> list[Path]:
    """Return the folders of all members shipped as wheels."""
    patterns = ("libs/*", "services/*", "operator", "spark")
    found = [path.parent for one in patterns for path in root.glob(f"{one}/pyproject.toml")]
    return sorted(found)


def buildable(root: Path = ROOT) -> list[Path]:
    """Return the members whose wheels can be built on this machine; the native one needs a cargo
    that works, and `ACCEL=no` leaves it out.
    """
    is_wanted = os.getenv("ACCEL") != "no" and shutil.which("cargo") and is_buildable()
    return [folder for folder in members(root) if is_wanted or not (folder / "Cargo.toml").exists()]


def workspace_version(root: Path = ROOT) -> str:
    """Return the version of all members."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def set_version(version: str, root: Path = ROOT) -> None:
    """Write `version` to the workspace, to every member, and to the pins between members."""
    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version) is None:
        raise SystemExit(f"{version!r} is not a version such as 0.2.0 or 0.2.0rc1")
    for path in (root / "pyproject.toml", *(folder / "pyproject.toml" for folder in members(root))):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r'^version = ".*"$', f'version = "{version}"', text, flags=re.MULTILINE)
        text = re.sub(r'"(cometmq[a-z-]*(?:\[[a-z]+\])?)==[^"]*"', rf'"\1=={version}"', text)
        path.write_text(text, encoding="utf-8")
    for path in root.glob("libs/runtime/src/cometmq/runtime/version.py"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r'^(VERSION: Final) = ".*"$', rf'\1 = "{version}"', text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
    for path in root.glob("deploy/helm/*/Chart.yaml"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^version: .*$", f"version: {semantic(version)}", text, flags=re.MULTILINE)
        text = re.sub(r"^appVersion: .*$", f'appVersion: "{version}"', text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
    for path in naming_images(root):
        text = path.read_text(encoding="utf-8")
        path.write_text(IMAGE.sub(rf"\1:{version}", text), encoding="utf-8")


def naming_images(root: Path = ROOT) -> list[Path]:
    """Return the pages, examples and settings that name an image with its version."""
    patterns = (
        "docs/guides/*.md",
        "deploy/examples/**/*.yaml",
        "deploy/compose/*.yaml",
        "README.md",
    )
    found = [path for one in patterns for path in root.glob(one)]
    settings = root / "operator/src/cometmq/operator/settings.py"
    found += [settings] if settings.exists() else []
    return [path for path in sorted(found) if IMAGE.search(path.read_text(encoding="utf-8"))]


def semantic(version: str) -> str:
    """Return a version as Helm writes it: 0.2.0rc1 becomes 0.2.0-rc.1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def public_address(remote: str) -> str | None:
    """Return the web address of a git remote, or None if it has none (such as a local path)."""
    remote = remote.strip().removesuffix("/").removesuffix(".git")
    if match := re.fullmatch(r"(?:ssh://)?git@([\w.-]+)[:/](.+)", remote):
        return f"https://{match[1]}/{match[2]}"
    if match := re.fullmatch(r"https://(?:[^@/]+@)?([\w.-]+(?::\d+)?/.+)", remote):
        return f"https://{match[1]}"  # a user name or token in the remote must not be published
    return None


def readme_for(text: str, folder: PurePosixPath, base: str | None) -> str:
    """Return the README with links that work outside the repository."""

    def resolved(match: re.Match[str]) -> str:
        title, target = match.groups()
        if base is None:
            return title
        parts: list[str] = []
        for part in (folder / target).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        return f"[{title}]({base}/{'/'.join(parts)})"

    return LINK.sub(resolved, text)


def stage(
    member: Path, target: Path, *, address: str | None, commit: str, machines: Collection[str] = ()
) -> None:
    """Copy a member to `target`, ready to be built, without what only our own tests import.

    `machines` are the architectures for which native wheels are built at the same time.
    """
    ignored = shutil.ignore_patterns("tests", "examples", "__pycache__", ".*")
    shutil.copytree(member, target, ignore=ignored)
    folder = PurePosixPath(member.relative_to(ROOT).as_posix())
    base = f"{address}/blob/{commit}" if address else None
    readme = target / "README.md"
    text = readme_for(readme.read_text(encoding="utf-8"), folder, base)
    readme.write_text(text, encoding="utf-8")
    if machines and member.name == META:
        project = target / "pyproject.toml"
        project.write_text(
            with_native(project.read_text(encoding="utf-8"), machines), encoding="utf-8"
        )
    if address:
        urls = (
            f'\n[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\n'
            f'Documentation = "{base}/docs/README.md"\nChangelog = "{base}/CHANGELOG.md"\n'
        )
        with (target / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(urls)


def with_native(project: str, machines: Collection[str]) -> str:
    """Return the project file of the meta package with the native path as a requirement."""
    version = tomllib.loads(project)["project"]["version"]
    named = " or ".join(f"platform_machine == '{machine}'" for machine in sorted(machines))
    line = f"    \"cometmq-accel=={version}; sys_platform == 'linux' and ({named})\",\n"
    return project.replace("\ndependencies = [\n", f"\ndependencies = [\n{line}", 1)


def git(*arguments: str) -> str:
    """Run git and return its output, or an empty string outside a clone."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


@contextmanager
def staging() -> Iterator[Path]:
    """Yield an empty folder that one build at a time may use.

    The path is always the same: the native module contains it, and cargo would compile everything
    again if it changed.
    """
    folder = ROOT / ".cache/wheels"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder / "members", ignore_errors=True)
        yield folder / "members"
        shutil.rmtree(folder / "members")


def reproducible_environment() -> dict[str, str]:
    """Return a build environment that keeps this machine's paths out of the results."""
    environment = build_environment()
    cargo_home = environment.get("CARGO_HOME", str(Path.home() / ".cargo"))
    flags = (f"--remap-path-prefix={ROOT}=/cometmq", f"--remap-path-prefix={cargo_home}=/cargo")
    return {**environment, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags)}


def is_native(member: Path) -> bool:
    """Return whether a member is built by cargo."""
    return (member / "Cargo.toml").exists()


def build_package(*words: str | Path, check: bool = True) -> bool:
    """Run `uv build`; return whether it succeeded."""
    command: list[str | Path] = [Path(sys.executable).with_name("uv"), "build", "--quiet", *words]
    done = subprocess.run(command, check=check, env=reproducible_environment())
    return done.returncode == 0


def build_native(folder: Path, out: Path, *, address: str | None, commit: str) -> list[str]:
    """Build the native wheel if that is possible here; return the architectures that have one."""
    for member in filter(is_native, buildable()):
        target = folder / member.name
        stage(member, target, address=address, commit=commit)
        print("wheels: building the native message path (about a minute)", file=sys.stderr)
        if build_package("--wheel", "--out-dir", out, target, check=is_required()):
            return [platform.machine()]
        print("wheels: cargo cannot build cometmq-accel, so no wheel of it", file=sys.stderr)
    return []


def build(out: Path, repository: str | None) -> list[Path]:
    """Build all wheels into `out`, replacing earlier ones."""
    address = public_address(repository or git("remote", "get-url", "origin"))
    if repository and address is None:
        raise SystemExit(f"{repository!r} is not an https:// or git@ address of a repository")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("cometmq*.whl"):
        old.unlink()
    commit = git("rev-parse", "HEAD") or "HEAD"
    with staging() as folder:
        machines = build_native(folder, out, address=address, commit=commit)
        for member in members():
            if not is_native(member):
                target = folder / member.name
                stage(member, target, address=address, commit=commit, machines=machines)
                build_package("--wheel", "--out-dir", out, target)
    if len(buildable()) < len(members()):
        reason = "ACCEL=no" if os.getenv("ACCEL") == "no" else "no cargo here that can build it"
        print(f"wheels: {reason}, so no wheel of cometmq-accel", file=sys.stderr)
    if address is None:
        print(
            "wheels: no project URLs, because this clone's origin is no public address;"
            " give it with make wheels REPOSITORY=https://...",
            file=sys.stderr,
        )
    return sorted(out.glob("cometmq*.whl"))


def main() -> None:
    """Run the command named on the command line."""
    parser = argparse.ArgumentParser(description="Wheels of all members of CometMQ.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build all wheels")
    building.add_argument("--out", type=Path, default=ROOT / "dist")
    building.add_argument("--repository", help="the public address of the repository")
    versions = commands.add_parser("version", help="set or repeat the version of all members")
    versions.add_argument("to", nargs="?", default=workspace_version())
    options = parser.parse_args()
    if options.command == "version":
        set_version(options.to)
        return
    for wheel in build(options.out, options.repository):
        print(wheel.name)


if __name__ == "__main__":
    main()
