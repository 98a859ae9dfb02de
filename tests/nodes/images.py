"""The images that every node has: what pods are made of here, since there is no registry to fetch others from."""

import os
import sys
from pathlib import Path

from tests.nodes import contents
from tests.nodes.image import Layer, write_image, write_layer
from tests.nodes.settings import PAUSE

# The reference trainer, the sidecar, and anything else that Python can do.
HOLDFAST = "localhost/holdfast:lab"


def write_pause(archive: Path, python: Layer) -> Path:
    """Keeps the namespaces of a pod; brings the layer that all images begin with."""
    write_image(archive, PAUSE, [python], ["sleep", "infinity"], environment())
    return archive


def write_holdfast(archive: Path, python: Layer) -> Path:
    own = write_layer(contents.holdfast(), archive.with_suffix(".layer"))
    write_image(archive, HOLDFAST, [python, own], ["python", "-m", "holdfast.trainer"], environment())
    return archive


def environment() -> dict[str, str]:
    """What programs find in containers of these images."""
    scripts = Path(sys.executable).parent
    return {"PATH": f"{scripts}:{os.defpath}", "PYTHONUNBUFFERED": "1"}
