"""Provides Google's own description of Compute Engine, which the double checks every request against.

    python -m tests.providers.compute_engine.provision

It is one file of a package that would take 114 MB if it were installed: the package is fetched, pinned by its digest,
and that file alone is kept in the user's cache.
"""

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.frameworks.provision import NotProvided, run

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FILE = "compute.v1.json"
IN_PACKAGE = f"googleapiclient/discovery_cache/documents/{FILE}"


def description_file(requirements: Path = REQUIREMENTS) -> Path:
    """Where the description is, or will be."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    return cache_folder() / "compute-engine" / digest / FILE


def provide(out: TextIO, requirements: Path = REQUIREMENTS) -> Path:
    file = description_file(requirements)
    if not file.exists():
        out.write("Fetching Google's description of Compute Engine for the tests, once: 17 MB.\n")
        out.flush()
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            _fetch(Path(folder), requirements)
            # A file is whole or not there; of two that fetch it at once, the second replaces it by the same.
            (Path(folder) / FILE).replace(file)
    out.write(f"Google's description of Compute Engine is there: {file}\n")
    return file


def _fetch(folder: Path, requirements: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(folder))
    run([*pip, "download", *options, "-r", str(requirements)], "the description of Compute Engine was not fetched")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(IN_PACKAGE) as packed, (folder / FILE).open("wb") as file:
        shutil.copyfileobj(packed, file)


def main() -> int:
    try:
        provide(sys.stdout)
    except NotProvided as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
