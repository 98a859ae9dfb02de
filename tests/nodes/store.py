"""Where containers' images are kept, with the layer that all of them begin with.

Unpacking an interpreter with its libraries on every node of every lab would take the better part of a minute. It is
done once: the store that results is kept in the user's cache, and nodes mount what is large in it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.control_plane.build import cache_folder
from tests.nodes import contents
from tests.nodes.image import Layer, write_layer
from tests.nodes.images import write_pause
from tests.nodes.machine import Machine, program
from tests.nodes.runtime import Runtime

BLOBS = Path("io.containerd.content.v1.content", "blobs", "sha256")
SNAPSHOTS = Path("io.containerd.snapshotter.v1.overlayfs", "snapshots")
LARGE = 2**20


class Store(NamedTuple):
    folder: Path
    python: Layer  # the one that is in it


def kept_store(maker: Machine, programs: Path) -> Store:
    """Found in the cache, or made now by a machine that is used for nothing else."""
    tree = contents.python()
    place = cache_folder() / "node" / "stores" / tree.key()
    if not place.exists():
        aside = place.with_name(f"unfinished-{os.getpid()}")  # whole or not there
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        tree.add_libraries()
        python = write_layer(tree, maker.folder / "python.layer", root=True)
        _unpack(write_pause(maker.folder / "pause.tar", python), maker, programs, aside / "store")
        (aside / "layer.json").write_text(json.dumps([python.digest, python.size]))
        if place.exists():  # another lab was quicker
            shutil.rmtree(aside)
        else:
            aside.rename(place)
    digest, size = json.loads((place / "layer.json").read_text())
    return Store(place / "store", Layer(digest, size))


def _unpack(archive: Path, maker: Machine, programs: Path, store: Path) -> None:
    maker.start()
    runtime = Runtime(maker, programs, store, maker.folder / "registries")
    runtime.start()
    runtime.import_image(archive)
    assert runtime.server is not None
    runtime.server.stop()
    maker.kill()


def copy_store(kept: Path, store: Path) -> None:
    """All but what `mount_store` mounts."""
    shutil.copytree(kept, store, ignore=_large)


def mount_store(kept: Path, store: Path, machine: Machine) -> None:
    """Lay the kept files over the copy. Nobody writes to them: images do not change."""
    lines = []
    for part in _parts(kept):
        target = store / part.relative_to(kept)
        if part.is_file():
            target.touch()
        else:
            target.mkdir(parents=True, exist_ok=True)
        lines.append(f"{part} {target} none bind,ro 0 0")
    table = machine.folder / "store.fstab"
    table.write_text("".join(f"{line}\n" for line in lines))
    machine.run(program("mount"), "--all", f"--fstab={table}")


def _parts(kept: Path) -> list[Path]:
    blobs = [blob for blob in (kept / BLOBS).iterdir() if blob.stat().st_size > LARGE]
    return [*blobs, *(one / "fs" for one in (kept / SNAPSHOTS).iterdir() if (one / "fs").exists())]


def _large(folder: str, names: list[str]) -> list[str]:
    """Those whose contents are mounted."""
    if Path(folder).parent.name == SNAPSHOTS.name:
        return ["fs"]
    if Path(folder).name == BLOBS.name:
        return [name for name in names if Path(folder, name).stat().st_size > LARGE]
    return []
