"""The archive of a container checkpoint to a registry that runs here: speed, memory, and what compression is worth.

    python -m bench.images [--quick]

Speed is told as a part of what `skopeo copy --preserve-digests` of the same image reaches, in turns with it. The
pusher is a process that has loaded all of the agent's code. It needs Debian's docker-registry and skopeo.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.many_jobs import say
from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.image import (
    LAYER_TYPE,
    MANIFEST_TYPE,
    ZSTD_LAYER_TYPE,
    Descriptor,
    ImageFacts,
    build_image,
    file_blob,
    sha256_digest,
)
from holdfast.checkpoints.images.layer import compress_blob
from holdfast.checkpoints.images.reference import registry_address
from holdfast.checkpoints.images.registry import RegistryClient, push_image
from holdfast.cli import node, sidecar
from tests.checkpoints.images.registries import RunningRegistry, running_registry

GIB, MIB = 1 << 30, 1 << 20
MEMORY = Path("/dev/shm")  # noqa: S108  # the disk is not what is measured
FACTS = ImageFacts(
    mode="container",
    owner_uid="u",
    owner_kind="CheckpointBackup",
    container="main",
    run=1,
    created="2026-01-01T00:00:00Z",
)


class Push(NamedTuple):
    """One push: seconds on the clock, and the memory of its process at the peak."""

    wall_s: float
    peak_mib: float = 0.0


def run(size: int, sizes: tuple[int, ...], rounds: int) -> None:
    with scratch(size) as folder:
        archive, image = folder / "archive.tar", folder / "image"
        write_archive(archive, size)
        lay_out(image, archive)
        say(f"An archive of {size / GIB:g} GiB, {rounds} rounds, in {folder.parent}:")
        pushes = [(push(folder, archive), copied(folder, image)) for _ in range(rounds)]
        own, other = (median(each.wall_s for each in taken) for taken in zip(*pushes, strict=True))
        share = median(theirs.wall_s / ours.wall_s for ours, theirs in pushes)
        say(
            f"  push     {share:4.0%} of skopeo's speed (90% is the aim): {size / own / MIB:.0f} and "
            f"{size / other / MIB:.0f} MiB/s"
        )
        compare_compression(folder, archive, own)
    peaks = [peak_at(each) for each in sizes]
    told = ", ".join(f"{peak:.0f} MiB at {each / GIB:g} GiB" for peak, each in zip(peaks, sizes, strict=True))
    apart = max(peaks) / min(peaks) - 1
    say(f"memory of the pusher at its peak: {told} (100 MiB is the limit; they differ by {apart:.0%}, a tenth may be)")


def compare_compression(folder: Path, archive: Path, plain_s: float) -> None:
    """Memory of which half is random, and half is written over and over with the same words."""
    target, began = folder / "archive.zst", time.monotonic()
    diff_id = compress_blob(file_blob(archive), target)
    compressed_s = time.monotonic() - began
    pushed_s = push(folder, target, diff_id).wall_s
    size, smaller = archive.stat().st_size, target.stat().st_size
    say(
        f"  zstd     {smaller / size:4.0%} of the bytes, and {(compressed_s + pushed_s) / plain_s:.2f} times as long: "
        f"{compressed_s / plain_s:.2f} to compress, {pushed_s / plain_s:.2f} to push what is left"
    )


def peak_at(size: int) -> float:
    """An archive of holes: they take no room on the disk, and are read and sent like all else."""
    with scratch(size, copies=1) as folder:
        with (folder / "archive.tar").open("wb") as file:
            file.truncate(size)
        return push(folder, folder / "archive.tar").peak_mib


@contextmanager
def scratch(size: int, copies: int = 3) -> Iterator[Path]:
    """A folder with room for the archive, compressed too, and a copy in the registry: in memory where that is free."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    room = min(int(found[1]) * 1024 if found else 0, shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0)
    with tempfile.TemporaryDirectory(
        prefix="holdfast-bench-", dir=MEMORY if room > (copies + 1) * size else None
    ) as made:
        if shutil.disk_usage(made).free < copies * size:
            sys.exit(f"{made}: there is not room for {copies} times {size / GIB:g} GiB")
        yield Path(made)


@contextmanager
def fresh_registry(folder: Path) -> Iterator[RunningRegistry]:
    """One that has nothing, at a port that skopeo remembers nothing of."""
    place = folder / "registry"
    place.mkdir()
    try:
        with running_registry(place) as registry:
            yield registry
    finally:
        shutil.rmtree(place)


def write_archive(path: Path, size: int) -> None:
    noise, words = bytearray(os.urandom(MIB)), (b"a page of a program's memory, as it often is. " * 25000)[:MIB]
    with path.open("wb") as file:
        for number in range(size // (2 * MIB)):
            noise[:8] = number.to_bytes(8, "big")
            file.write(noise)
            file.write(words)


def lay_out(folder: Path, archive: Path) -> None:
    """The image that we push, as a folder that skopeo copies from."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    digest = file_digest(archive)
    (blobs / digest.removeprefix("sha256:")).hardlink_to(archive)
    layer = Descriptor(media_type=LAYER_TYPE, digest=digest, size=archive.stat().st_size)
    image = build_image(FACTS, layer, digest)
    for content in (image.config, image.manifest):
        (blobs / sha256_digest(content).removeprefix("sha256:")).write_bytes(content)
    entry = {"mediaType": MANIFEST_TYPE, "digest": image.digest, "size": len(image.manifest)}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "t"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def copied(folder: Path, image: Path) -> Push:
    with fresh_registry(folder) as registry:
        (folder / "registry" / "certs").mkdir()
        (folder / "registry" / "certs" / "ca.crt").write_text(registry.ca_pem)
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--preserve-digests"]
        command += ["--dest-cert-dir", str(folder / "registry" / "certs"), f"oci:{image}:t"]
        began = time.monotonic()
        subprocess.run([*command, f"docker://{registry.address.host}/team/app:t"], check=True)  # noqa: S603
        return Push(time.monotonic() - began)


def push(folder: Path, archive: Path, diff_id: str = "") -> Push:
    """In a process of its own, whose memory is counted."""
    with fresh_registry(folder) as registry:
        authority = folder / "registry" / "authority.pem"
        authority.write_text(registry.ca_pem)
        command = [sys.executable, "-m", "bench.images", "push", str(archive), registry.address.host, str(authority)]
        done = subprocess.run([*command, diff_id], check=True, capture_output=True)  # noqa: S603
        return msgspec.json.decode(done.stdout, type=Push)


def push_here(archive: Path, host: str, authority: str, diff_id: str) -> Push:
    """What the child process does. All of the agent's code is loaded: it counts as memory."""
    assert callable(node.node)
    sidecar.tune_allocator()
    began = time.monotonic()
    asyncio.run(push_with_client(archive, host, authority, diff_id))
    wall_s = time.monotonic() - began
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return Push(wall_s, int(peak[1]) / 1024)


async def push_with_client(archive: Path, host: str, authority: str, diff_id: str) -> None:
    credential, began = RegistryCredential(authority=authority), time.monotonic()
    async with RegistryClient(registry_address(host), credential, deadline_s=began + 3600) as client:
        media_type = ZSTD_LAYER_TYPE if diff_id else LAYER_TYPE
        await push_image(client, "team/app", "t", FACTS, file_blob(archive), media_type=media_type, diff_id=diff_id)


if __name__ == "__main__":
    if sys.argv[1:2] == ["push"]:
        _, _, path, host, authority, diff_id = sys.argv
        sys.stdout.buffer.write(msgspec.json.encode(push_here(Path(path), host, Path(authority).read_text(), diff_id)))
    elif sys.argv[1:] == ["--quick"]:
        run(GIB // 2, (GIB // 8, GIB // 2, GIB), 2)
    else:
        run(4 * GIB, (GIB, 4 * GIB, 20 * GIB), 3)
