# SPDX-License-Identifier: Apache-2.0
"""Normalised archives are equal if the originals differ only in times and in build names."""

import hashlib
import io
import json
import tarfile

from reproducible import normalise

EPOCH = 1_700_000_000


def tar(entries):
    """Return a tar of (name, content, time) entries; an entry whose content is None is a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, mtime in entries:
            entry = tarfile.TarInfo(name)
            entry.mtime = mtime
            if content is None:
                entry.type = tarfile.DIRTYPE
            entry.size = len(content or b"")
            archive.addfile(entry, io.BytesIO(content or b""))
    return out.getvalue()


def member(archive, name):
    file = archive.extractfile(name)
    return file.read()


def image(path, *, built_at, host, content=b"hello"):
    """Write an archive as `docker save` does."""
    layer = tar([("etc", None, built_at), ("etc/motd", content, built_at), ("old", b"", 5)])
    config = {
        "architecture": "amd64",
        "config": {"Cmd": ["sh"], "Hostname": host, "Image": f"sha256:{host}"},
        "container": host,
        "created": str(built_at),
        "history": [{"created": str(built_at), "created_by": "COPY"}],
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l/layer.tar"]}]
    files = {"c.json": config, "manifest.json": manifest}
    members = [(name, json.dumps(text).encode(), built_at) for name, text in files.items()]
    path.write_bytes(tar([*members, ("l/layer.tar", layer, built_at)]))
    return path


def test_builds_at_other_times_and_places_become_equal(tmp_path):
    first = image(tmp_path / "1", built_at=EPOCH + 50, host="one")
    second = image(tmp_path / "2", built_at=EPOCH + 9_999, host="two")
    digests = [normalise(one, one.with_suffix(".out"), epoch=EPOCH) for one in (first, second)]
    assert digests[0] == digests[1]
    assert first.with_suffix(".out").read_bytes() == second.with_suffix(".out").read_bytes()


def test_other_content_gives_another_digest(tmp_path):
    first = image(tmp_path / "1", built_at=EPOCH, host="one")
    second = image(tmp_path / "2", built_at=EPOCH, host="one", content=b"bye")
    digests = {normalise(one, one.with_suffix(".out"), epoch=EPOCH) for one in (first, second)}
    assert len(digests) == 2


def test_the_rewritten_archive_is_consistent(tmp_path):
    source = image(tmp_path / "1", built_at=EPOCH + 50, host="one")
    digest = normalise(source, tmp_path / "out", epoch=EPOCH)
    with tarfile.open(tmp_path / "out") as archive:
        (manifest,) = json.loads(member(archive, "manifest.json"))
        config_bytes = member(archive, manifest["Config"])
        layer_bytes = member(archive, manifest["Layers"][0])
    assert digest == f"sha256:{hashlib.sha256(config_bytes).hexdigest()}"
    config = json.loads(config_bytes)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer_bytes).hexdigest()}"]
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert config["config"] == {"Cmd": ["sh"]}
    with tarfile.open(fileobj=io.BytesIO(layer_bytes)) as layer:
        times = {one.name: one.mtime for one in layer}
        assert member(layer, "etc/motd") == b"hello"
    assert times == {"etc": EPOCH, "etc/motd": EPOCH, "old": 5}
