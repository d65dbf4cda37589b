# SPDX-License-Identifier: Apache-2.0
"""Build the images: `build_images.py suite operator spark`.

Wheels are built and verified on this machine, so Docker needs no network to build. Each image is
then rewritten so that the same sources and the same base image give the same digest on every
machine (`reproducible.py`). The archive for `docker load` and the list of contents are kept in
`dist/images`.
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import oci
from locking import locked, metadata_of, needed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from reproducible import normalise
from sbom import document

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent
CACHE: Final = ROOT / ".cache/images"
PYTHON: Final = "{}.{}".format(*sys.version_info[:2])
LIST_DEBIAN: Final = (
    "dpkg-query -W -f '${Package} ${Version} ${Architecture}\\n' 2>/dev/null || true"
)


class Target(NamedTuple):
    """An image: its name, the wheels it is built from, and the lock file of their dependencies."""

    image: str
    dockerfile: Path
    members: tuple[str, ...]
    lock: Path


TARGETS: Final[Mapping[str, Target]] = {
    "suite": Target(
        "cometmq",
        HERE / "Dockerfile",
        ("cometmq[ha,protobuf]", "cometmq-accel"),
        ROOT / "requirements.lock",
    ),
    "operator": Target(
        "cometmq-operator",
        HERE / "operator/Dockerfile",
        ("cometmq-operator",),
        ROOT / "requirements.lock",
    ),
    "spark": Target(
        "cometmq-spark",
        ROOT / "deploy/spark/Dockerfile",
        ("cometmq-spark",),
        ROOT / "spark/requirements-runtime.lock",
    ),
}


class Built(NamedTuple):
    """A built image: its tag, its digest, and the files in `dist/images`."""

    tag: str
    digest: str
    archive: Path
    contents: Path


def own_wheels(epoch: int) -> dict[str, Path]:
    """Build the wheels of all members; return them by name."""
    out = CACHE / "own"
    command = [sys.executable, str(ROOT / "deploy/wheels.py"), "build", "--out", str(out)]
    subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env=_environment(SOURCE_DATE_EPOCH=str(epoch))
    )
    return {parse_wheel_filename(path.name)[0]: path for path in out.glob("*.whl")}


def wheels_of(target: Target, own: Mapping[str, Path]) -> list[Path]:
    """Return all the wheels for an image; download missing ones and check their hashes."""
    entries = locked(target.lock.read_text(encoding="utf-8"))
    requires = {name: _requires(metadata_of(path).requires_dist) for name, path in own.items()}
    if target.lock == ROOT / "requirements.lock":
        requires |= {name: _installed(name) for name in entries}
        names, unknown = needed((one for one in target.members if _is_built(one, own)), requires)
        third_party = names - own.keys()
    else:  # the lock lists exactly what the image needs
        names, unknown = needed(target.members, requires)
        third_party = set(entries)
        unknown -= third_party
    if unknown:
        raise SystemExit(f"{target.lock} lacks {', '.join(sorted(unknown))}: run make lock")
    lines = "\n".join(entries[name] for name in sorted(third_party)) + "\n"
    return sorted(own[name] for name in names & own.keys()) + _download(lines)


def _is_built(member: str, own: Mapping[str, Path]) -> bool:
    """Return whether the wheel was built; the native one is optional, because it needs cargo."""
    return canonicalize_name(Requirement(member).name) in own


def _installed(name: str) -> list[Requirement]:
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Requirement(text) for text in texts]


def _requires(found: Iterable[Requirement] | None) -> list[Requirement]:
    return list(found or ())


def _download(lock: str) -> list[Path]:
    """Return the wheels of a lock, from the cache if the same lock was downloaded before."""
    key = hashlib.sha256(f"{PYTHON} {platform.machine()}\n{lock}".encode()).hexdigest()[:16]
    folder = CACHE / "wheels" / key
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        listed = partial / "requirements.lock"
        listed.write_text(lock, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run(
            [*command, "--wheel-dir", str(partial), "--requirement", str(listed)], check=True
        )
        partial.rename(folder)
    return sorted(folder.glob("*.whl"))


def prepare(name: str, wheels: list[Path], contents: str) -> Path:
    """Write the build context of a target and return its folder."""
    context = CACHE / "context" / name
    shutil.rmtree(context, ignore_errors=True)
    (context / "wheels").mkdir(parents=True)
    lines = []
    for wheel in wheels:
        shutil.copyfile(wheel, context / "wheels" / wheel.name)
        package, version, _, _ = parse_wheel_filename(wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{package}=={version} --hash=sha256:{digest}\n")
    (context / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    (context / "sbom.cdx.json").write_text(contents, encoding="utf-8")
    shutil.copyfile(HERE / "install.sh", context / "install.sh")
    folder = TARGETS[name].dockerfile.parent
    for script in (*folder.glob("*_main.py"), *folder.glob("*.sh"), folder / "Dockerfile"):
        shutil.copyfile(script, context / script.name)
    return context


def build(name: str, options: argparse.Namespace, own: Mapping[str, Path]) -> Built:
    """Build one image, load it into the engine, and return its digest."""
    target = TARGETS[name]
    version = _version()
    tag = f"{options.prefix}{target.image}:{options.tag or version}"
    base = options.spark_base_image if name == "spark" else options.base_image
    wheels = wheels_of(target, own)
    debian = docker("run", "--rm", "--network=none", "--entrypoint=sh", base, "-c", LIST_DEBIAN)
    contents = document(target.image, version, wheels, debian.splitlines(), epoch=options.epoch)
    context = prepare(name, wheels, contents)
    labels = {"version": version, "revision": _git("rev-parse", "HEAD"), "base.name": base}
    words = [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
    words += [f"--build-arg=PYTHON_VERSION={PYTHON}", f"--build-arg=BASE_IMAGE={base}"]
    words += [f"--network={options.network}", *(["--no-cache"] if options.no_cache else [])]
    docker("build", "--tag", tag, *words, str(context), quiet=False)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    archive = out / f"{target.image}-{version}.tar"
    raw = archive.with_suffix(".raw")
    docker("save", "--output", str(raw), tag)
    digest = normalise(raw, archive, epoch=options.epoch)
    raw.unlink()
    docker("load", "--quiet", "--input", str(archive))
    listed = out / f"{target.image}-{version}.cdx.json"
    listed.write_text(contents, encoding="utf-8")
    return Built(tag, digest, archive, listed)


def docker(*words: str, quiet: bool = True) -> str:
    """Run the engine's command and return its output; if it fails, exit with its error."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("images need a Docker engine: the command `docker` is missing") from None
    if done.returncode:
        shown = "" if quiet else done.stdout
        raise SystemExit(f"docker {words[0]} failed:\n{shown}{done.stderr}".rstrip())
    return done.stdout


def _version() -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import wheels; print(wheels.workspace_version())"],
        cwd=ROOT / "deploy", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}  # noqa: TID251  # passed on to a child, nothing is read


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Build the images of CometMQ.")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="default: suite")
    parser.add_argument("--base-image", default="python:3.11-slim-bookworm")
    parser.add_argument("--spark-base-image", help="default: the base image")
    parser.add_argument("--prefix", default="", help="registry and folder, such as reg.example/mq/")
    parser.add_argument("--tag", help="default: the version")
    parser.add_argument("--epoch", type=int, help="SOURCE_DATE_EPOCH; default: time of the commit")
    parser.add_argument("--network", default="default", help="network of the build")
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "dist/images")
    parser.add_argument("--oci", type=Path, help="a folder for OCI archives of the images")
    options = parser.parse_args(arguments)
    options.targets = options.targets or ["suite"]
    options.spark_base_image = options.spark_base_image or options.base_image
    options.epoch = options.epoch or int(_git("log", "-1", "--format=%ct") or 0)
    return options


def main() -> None:
    """Build the requested images and print their digests."""
    options = parsed()
    own = own_wheels(options.epoch)
    for name in options.targets:
        built = build(name, options, own)
        size = docker("image", "inspect", "--format={{.Size}}", built.tag).strip()
        print(f"{built.tag}  {built.digest}  {int(size) // 1_000_000} MB")
        print(f"  {built.archive}\n  {built.contents}")
        if options.oci is not None:
            archive = options.oci / f"{built.archive.stem}-{oci.architecture()}.oci.tar"
            print(f"  {archive}  {oci.write(built.archive, archive)}")


if __name__ == "__main__":
    main()
