"""`holdfast restore`: what a worker's pod does before its training program starts."""

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.sidecar.restore import restore as restored

FULL = "the volume is full: remove old checkpoints, or give it more space"
TAKEN = "a file is in the place of a folder: remove it, or choose another checkpoint.storage.prefix"
DENIED = "let user {uid} or group {gid} read and write the volume, or set podTemplate.securityContext"
HINTS = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EEXIST: TAKEN,
    errno.ENOTDIR: TAKEN,
    errno.EROFS: "the volume is read-only: mount one that can be written to",
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
}


class NotInAPod(HoldfastError):
    """The variables that the operator sets are not there."""


def restore() -> None:
    """Put the newest checkpoint of earlier attempts into CHECKPOINT_DIR. The operator runs it in a worker's pod."""
    # The first process of a container is not ended by a signal that it leaves to its default.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        checkpoint_dir, resume_from, index = _places(os.environ)
        said = restored(checkpoint_dir, resume_from, index, sleep=time.sleep)
    except HoldfastError as error:
        sys.exit(f"holdfast: {error}")
    except OSError as error:
        sys.exit(f"holdfast: {_explained(error, checkpoint_dir)}")
    sys.stdout.write(f"{said}\n")


def _places(environ: Mapping[str, str]) -> tuple[Path, Path, int]:
    missing = [name for name in ("CHECKPOINT_DIR", "RESUME_FROM", "HOLDFAST_INDEX") if not environ.get(name)]
    if missing:
        raise NotInAPod(f"{', '.join(missing)} not set: the operator runs this command, in the pod of a worker")
    index = environ["HOLDFAST_INDEX"]
    if not index.isascii() or not index.isdigit():
        raise NotInAPod(f"HOLDFAST_INDEX is {index!r}: it should be the number of the worker")
    return Path(environ["CHECKPOINT_DIR"]), Path(environ["RESUME_FROM"]), int(index)


def _explained(error: OSError, checkpoint_dir: Path) -> str:
    place = f" ({error.filename})" if error.filename not in (None, str(checkpoint_dir)) else ""
    hint = HINTS.get(error.errno or 0, "").format(uid=os.getuid(), gid=os.getgid())
    reason = f"can't restore a checkpoint into {checkpoint_dir}: {error.strerror or error}{place}"
    return f"{reason}; {hint}" if hint else reason
