"""How a worker introduces itself, and whether it belongs here."""

import json
from dataclasses import asdict, dataclass

from holdfast.trainer.place import RankInfo

LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Handshake:
    rank: int
    size: int
    digest: str

    def encode(self) -> bytes:
        return json.dumps({"holdfast": 1, **asdict(self)}).encode()


def decode(content: bytearray) -> Handshake | None:
    """None for what no worker would send."""
    try:
        fields = json.loads(content)
        return (
            Handshake(int(fields["rank"]), int(fields["size"]), str(fields["digest"]))
            if fields["holdfast"] == 1
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


def rejection_reason(hello: Handshake, place: RankInfo, digest: str, present: set[int]) -> str:
    """Why this worker can't take part; empty when it can."""
    if hello.size != place.size or not 0 < hello.rank < place.size:
        return f"this training has {place.size} workers: there is no place for worker {hello.rank} of {hello.size}"
    if hello.digest != digest:
        return "this worker's settings or attempt are not those of worker 0: give all workers the same"
    if hello.rank in present:
        return f"there is a worker {hello.rank} already: give every worker its own rank"
    return ""
