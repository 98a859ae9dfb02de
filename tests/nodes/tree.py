"""Files of this machine, gathered to become a layer of an image, where they lie at the same paths."""

import hashlib
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

EXECUTABLE = stat.S_IXUSR
EVERYBODYS = stat.S_ISVTX | stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
ELF = b"\x7fELF"


class Tree:
    """Paths with all that leads to them: folders, and links with what they point to."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()

    def add(self, path: Path) -> None:
        """A file, or a link with its target; whatever is already there is not added twice."""
        whole = Path("/")
        for part in path.absolute().parts[1:]:
            whole = Path(os.path.normpath(whole / part))
            if whole not in self.paths:
                self.paths.add(whole)
                if whole.is_symlink():
                    self.add(whole.parent / whole.readlink())
            if whole.is_symlink():
                whole = whole.resolve()

    def add_folder(self, folder: Path, *, without: frozenset[str] = frozenset()) -> None:
        """All that is in a folder, without the folders of these names."""
        for path, folders, files in os.walk(folder):
            folders[:] = sorted(set(folders) - without)
            for name in (*folders, *files):
                self.add(Path(path, name))

    def key(self) -> str:
        """A digest that changes when a file does, without reading any."""
        digest = hashlib.sha256()
        for path in sorted(self.paths):
            status = path.lstat()
            seen = (str(path), status.st_mode, status.st_size if path.is_file() else 0, _time(status))
            digest.update(repr(seen).encode())
        return digest.hexdigest()[:16]

    def add_libraries(self) -> None:
        """The shared libraries that the programs in it are linked with."""
        programs = [str(path) for path in sorted(self.paths) if _is_program(path)]
        # One that is no dynamic program makes ldd complain, and is none the worse for it.
        said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
        for found in sorted(set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", said, re.MULTILINE))):
            self.add(Path(found))

    def members(self) -> Iterator[tuple[tarfile.TarInfo, Path]]:
        """Everybody may read it all: the programs in a pod run as anybody."""
        for path in sorted(self.paths):
            status = path.lstat()
            member = tarfile.TarInfo(str(path).lstrip("/"))
            member.mtime = int(status.st_mtime)  # compiled files are valid for the time of their source
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            elif path.is_dir():
                # A layer's folder replaces that of the layer below: /tmp has to stay one that everybody may write to.
                member.type, member.mode = tarfile.DIRTYPE, 0o755 | (status.st_mode & EVERYBODYS)
            else:
                member.size = status.st_size
                member.mode = 0o755 if status.st_mode & EXECUTABLE else 0o644
            yield member, path


def _time(status: os.stat_result) -> int:
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns


def _is_program(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(ELF)) == ELF
