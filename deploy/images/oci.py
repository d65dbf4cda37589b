# SPDX-License-Identifier: Apache-2.0
"""Writes an image as an OCI archive, for registries and engines other than Docker.

It also has the list that `docker load` reads, because Docker before 25 knows no OCI archives.
The input is an archive of `docker save` (`build_images.py`). The same input gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import IO, Final

_TYPES: Final = "application/vnd.oci.image"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class _Layout:
    """An OCI layout in a tar file; blobs have their digests as names."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._known: set[str] = set()

    def add(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        self._archive.addfile(entry, io.BytesIO(data))

    def blob(self, data: bytes, kind: str) -> dict[str, object]:
        """Add a blob and return its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            self._known.add(digest)
            self.add(f"blobs/sha256/{digest}", data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def write(source: Path, target: Path) -> str:
    """Write the image in `source` to `target`; return the digest of its manifest."""
    with tarfile.open(source) as saved, tarfile.open(target, "w") as archive:
        layout = _Layout(archive)
        layout.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        (image,) = json.loads(_read(saved, "manifest.json").read())
        layers = [
            layout.blob(gzip.compress(_read(saved, name).read(), 6, mtime=0),
                        f"{_TYPES}.layer.v1.tar+gzip")
            for name in image["Layers"]
        ]  # fmt: skip
        config = layout.blob(_read(saved, image["Config"]).read(), f"{_TYPES}.config.v1+json")
        kind = f"{_TYPES}.manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
        described = layout.blob(json.dumps(manifest, sort_keys=True).encode(), kind)
        (tag,) = image["RepoTags"]
        described["annotations"] = {
            "io.containerd.image.name": tag,
            "org.opencontainers.image.ref.name": tag.rpartition(":")[2],
        }  # fmt: skip
        index = {"schemaVersion": 2, "manifests": [described]}
        layout.add("index.json", json.dumps(index, sort_keys=True).encode())
        listed = [{
            "Config": _path(config), "RepoTags": [tag], "Layers": [_path(one) for one in layers],
        }]  # fmt: skip
        layout.add("manifest.json", json.dumps(listed, sort_keys=True).encode())
    return str(described["digest"])


def _path(descriptor: dict[str, object]) -> str:
    """Return the name of a blob in the archive."""
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")


def architecture() -> str:
    """Return the architecture of images that are built here, in the words of registries."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _read(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is no file of the archive")
    return member
