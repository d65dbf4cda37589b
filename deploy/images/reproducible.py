# SPDX-License-Identifier: Apache-2.0
"""Rewrites an image archive so that the same files always give the same digest.

Builders record the time of the build: in file timestamps, in the history, and in the names of
intermediate containers. `normalise` caps all times at a given one, and drops fields that describe
the build rather than the image. It works on the archives of `docker save`, so it does not depend on
the builder's version.
"""

import hashlib
import json
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

_OF_THE_BUILD: Final = ("container", "container_config", "docker_version", "id", "parent")
_OF_THE_BUILD_CONFIG: Final = ("Hostname", "Image", "Domainname")


def normalise(source: Path, target: Path, *, epoch: int) -> str:
    """Write an archive for `docker load`, and return the digest, which is the image's id."""
    with tempfile.TemporaryDirectory(dir=target.parent) as name, tarfile.open(source) as archive:
        folder = Path(name)
        (manifest,) = json.load(_open(archive, "manifest.json"))
        config = json.load(_open(archive, manifest["Config"]))
        layers = [_layer(_open(archive, path), folder, epoch=epoch) for path in manifest["Layers"]]
        text = json.dumps(_config(config, layers, epoch=epoch), sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest()
        (folder / f"{digest}.json").write_bytes(text)
        listed = [
            {
                "Config": f"{digest}.json",
                "RepoTags": manifest["RepoTags"],
                "Layers": [f"{layer}.tar" for layer in layers],
            }
        ]
        (folder / "manifest.json").write_text(json.dumps(listed), encoding="utf-8")
        _pack(folder, target, epoch=epoch)
    return f"sha256:{digest}"


def _open(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open an archive member; `docker save` may store identical layers once and link to them."""
    file = archive.extractfile(name)
    if file is None:
        raise SystemExit(f"the image archive has no file {name}: is it an archive of docker save?")
    return file


def _layer(file: IO[bytes], folder: Path, *, epoch: int) -> str:
    """Copy a layer with its times capped at `epoch`; return its digest, which is its new name."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
        with (
            tarfile.open(fileobj=file, mode="r|*") as old,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as new,
        ):
            for entry in old:
                entry.mtime = min(int(entry.mtime), epoch)
                entry.pax_headers = {
                    key: value
                    for key, value in entry.pax_headers.items()
                    if key.startswith("SCHILY.xattr.")
                }
                new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
        path = Path(out.name)
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    path.rename(folder / f"{digest}.tar")
    return digest


def _config(config: dict[str, Any], layers: list[str], *, epoch: int) -> dict[str, Any]:
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = {key: value for key, value in config.items() if key not in _OF_THE_BUILD}
    inner = {
        key: value
        for key, value in config.get("config", {}).items()
        if key not in _OF_THE_BUILD_CONFIG
    }
    history = [{**one, "created": created} for one in config.get("history", [])]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]}
    return {**kept, "created": created, "config": inner, "history": history, "rootfs": rootfs}


def _pack(folder: Path, target: Path, *, epoch: int) -> None:
    with target.open("wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            entry.mtime = epoch
            with path.open("rb") as file:
                archive.addfile(entry, file)
