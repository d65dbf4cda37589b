# SPDX-License-Identifier: Apache-2.0
"""An OCI archive holds the same image as the archive of `docker save` that it is made from."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile

import oci
import release as releasing


def saved(path, layers):
    """Write an archive as `docker save` does; return the configuration of its image."""
    config = {
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers],
        },
    }  # fmt: skip
    text = json.dumps(config).encode()
    listed = [{
        "Config": "config.json", "RepoTags": ["reg.example/cometmq:1"],
        "Layers": [f"{number}.tar" for number in range(len(layers))],
    }]  # fmt: skip
    files = {"manifest.json": json.dumps(listed).encode(), "config.json": text}
    files |= {f"{number}.tar": one for number, one in enumerate(layers)}
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return config


def test_every_blob_has_its_digest_and_the_layers_are_those_of_the_image(tmp_path):
    config = saved(tmp_path / "saved.tar", [b"one" * 1000, b"two" * 500, b"one" * 1000])
    digest = oci.write(tmp_path / "saved.tar", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        names = archive.getnames()
        files = {}
        for name in names:
            member = archive.extractfile(name)
            assert member is not None
            files[name] = member.read()
    assert len(names) == len(set(names))
    blobs = {
        f"sha256:{name.rpartition('/')[2]}": data
        for name, data in files.items()
        if name.startswith("blobs/sha256/")
    }
    assert all(name == f"sha256:{hashlib.sha256(it).hexdigest()}" for name, it in blobs.items())
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["digest"] == digest
    assert described["annotations"]["org.opencontainers.image.ref.name"] == "1"
    manifest = json.loads(blobs[digest])
    assert json.loads(blobs[manifest["config"]["digest"]]) == config
    plain = [gzip.decompress(blobs[one["digest"]]) for one in manifest["layers"]]
    assert [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in plain] == (
        config["rootfs"]["diff_ids"]
    )
    (listed,) = json.loads(files["manifest.json"])
    assert listed["RepoTags"] == ["reg.example/cometmq:1"]
    assert files[listed["Config"]] == blobs[manifest["config"]["digest"]]
    assert [gzip.decompress(files[name]) for name in listed["Layers"]] == plain
    again = oci.write(tmp_path / "saved.tar", tmp_path / "again.tar")
    assert again == digest
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "image.tar").read_bytes()


def test_a_release_says_why_it_has_no_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    releasing.images(tmp_path, [], epoch=0)
    assert "the command `docker` is missing" in capsys.readouterr().err
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    engine.chmod(0o755)
    releasing.images(tmp_path, [], epoch=0)
    assert "no images: docker info: Cannot connect" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["docker"]


def test_a_release_with_images_builds_them_from_its_commit(tmp_path, monkeypatch):
    engine, commands = tmp_path / "docker", []
    engine.write_text("#!/bin/sh\nexit 0\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    run = subprocess.run

    def recorded(command, **options):
        if "build_images.py" not in str(command[1]):
            return run(command, **options)
        commands.append(list(map(str, command)))
        (tmp_path / "files-images").mkdir()
        return None

    monkeypatch.setattr(subprocess, "run", recorded)
    releasing.images(tmp_path / "files", ["--base-image", "base"], epoch=7)
    (command,) = commands
    assert command[2:] == [
        "suite", "operator", "--out", str(tmp_path / "files-images"), "--epoch", "7",
        "--oci", str(tmp_path / "files"), "--base-image", "base",
    ]  # fmt: skip
    assert not (tmp_path / "files-images").exists()
