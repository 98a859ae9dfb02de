"""Event logs of real fleets of spot machines; README.md says whose."""

import csv
from pathlib import Path
from typing import Literal, NamedTuple

P3, G4DN = "preemptions-aws-p3.csv", "preemptions-aws-g4dn.csv"
LOGS = (P3, G4DN)


class MachineEvent(NamedTuple):
    """A machine came, or was taken back."""

    at_s: float
    kind: Literal["add", "remove"]
    machine: str


def events(log: str) -> list[MachineEvent]:
    with (Path(__file__).parent / log).open(newline="") as file:
        rows = list(csv.reader(file))
    return [MachineEvent(int(at) / 1000, "add" if kind == "add" else "remove", machine) for at, kind, machine in rows]
