"""What a container can have beside its memory, and a program that shows whether it still has it."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.nodes.container_checkpoints import RESTRICTED, python_container

PAGE = Path(__file__).parents[2] / "docs" / "node-agent.md"
PORT = 7000

# Each line says how many steps it has done, and whether what it was told to have is there.
HOLDING = """\
import mmap, os, pathlib, secrets, socket, subprocess, sys, threading, time

mine, kind = secrets.token_hex(8), sys.argv[1]


def threads():
    ticks = []
    def tick():
        while True:
            ticks.append(time.monotonic())
            time.sleep(0.05)
    threading.Thread(target=tick, daemon=True).start()
    seen = [0]
    def kept():
        before, seen[0] = seen[0], len(ticks)
        return seen[0] > before
    return kept


def children():
    read, write = os.pipe()
    script = "import os, time\\nwhile True: os.write(%d, b'x'); time.sleep(0.05)" % write
    child = subprocess.Popen([sys.executable, "-c", script], pass_fds=[write])
    return lambda: child.poll() is None and bool(os.read(read, 1))


def listener():
    server = socket.create_server(("0.0.0.0", 7000))
    def serve():
        while True:
            client, _ = server.accept()
            client.sendall(mine.encode())
            client.close()
    threading.Thread(target=serve, daemon=True).start()
    # Somebody outside asks it: a connection to itself would be one when it is saved.
    return lambda: True


def connection():
    client = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    def kept():
        client.sendall(b"x")
        return client.recv(1) == b"x"
    return kept


def written(path):
    pathlib.Path(path).write_text(mine)
    return lambda: pathlib.Path(path).read_text() == mine


def opened(path):
    file = open(path, "w+")
    file.write(mine)
    file.flush()
    def kept():
        file.seek(0)
        return file.read() == mine
    return kept


def segment():
    file = os.open("/dev/shm/segment", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(file, 4096)
    memory = mmap.mmap(file, 4096)
    memory[:16] = mine.encode()
    return lambda: memory[:16].decode() == mine


made = {
    "threads": threads,
    "children": children,
    "listener": listener,
    "connection": connection,
    "own": lambda: written("/tmp/written"),
    "volume": lambda: written("/scratch/written"),
    "open": lambda: opened("/scratch/opened"),
    "segment": segment,
}[kind]()
step = 0
while True:
    step += 1
    try:
        kept = made()
    except OSError:
        kept = False
    print(mine, step, kept, flush=True)
    time.sleep(0.1)
"""


class Limit(NamedTuple):
    """One row of the page's table: what a container has, and what became of it."""

    kind: str
    row: str


LIMITS = (
    Limit("threads", "threads"),
    Limit("children", "child processes and pipes"),
    Limit("listener", "a listening socket"),
    Limit("connection", "an established connection"),
    Limit("own", "a file in its own layer"),
    Limit("volume", "a file in an emptyDir"),
    Limit("open", "an open file in an emptyDir"),
    Limit("segment", "a segment in /dev/shm"),
)
GOES_ON, LOST, NOT_RESTORED, NOT_SAVED = "goes on", "is lost", "can't be restored", "can't be saved"


def holding_container(kind: str, *arguments: str) -> dict[str, Any]:
    mounts = [{"name": "scratch", "mountPath": "/scratch"}] if kind in ("volume", "open") else []
    security = {**RESTRICTED, "readOnlyRootFilesystem": kind != "own"}
    container = python_container("trainer", HOLDING, volumeMounts=mounts, securityContext=security)
    return {**container, "command": [*container["command"], kind, *arguments]}


def volumes(kind: str) -> list[dict[str, Any]]:
    return [{"name": "scratch", "emptyDir": {}}] if kind in ("volume", "open") else []


def table() -> dict[str, str]:
    """What the page says, by row."""
    section = PAGE.read_text().partition("## What is not saved")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", section, re.MULTILINE)
    return {what: became for what, became in rows if what not in ("a container has", "---")}
