"""What was started for a pod, written down before it runs: what a runner that was killed leaves to the next one."""

from pathlib import Path

import msgspec

from holdfast.machine.identity import ProcessId

PROCESS_JOURNAL = "processes.jsonl"


def record_process(folder: Path, identity: ProcessId) -> None:
    """Add one process. Not synced to the disk: a record that is lost with the machine speaks of nothing alive."""
    with (folder / PROCESS_JOURNAL).open("ab") as file:
        file.write(msgspec.json.encode(identity) + b"\n")


def started(folder: Path) -> bool:
    """Whether anything of this pod has ever been started."""
    return (folder / PROCESS_JOURNAL).exists()


def read_processes(folder: Path) -> list[ProcessId]:
    """All that can be read: a last line that was cut short is passed over, since its process never got to run."""
    try:
        lines = (folder / PROCESS_JOURNAL).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=ProcessId))
        except msgspec.DecodeError:
            continue
    return found
