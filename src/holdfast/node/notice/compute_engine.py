"""Google Compute Engine: `instance/preempted` becomes TRUE, and the machine has 30 s from then on."""

from urllib.parse import quote

from holdfast.node.notice.metadata import (
    MetadataAnswer,
    MetadataError,
    MetadataServer,
    PreemptionNotice,
    unexpected,
    unreadable,
)

FLAVOR = {"Metadata-Flavor": "Google"}
PREEMPTED = "/computeMetadata/v1/instance/preempted"
# The server answers after so long even if nothing has changed: a connection that died in silence is found by then.
HELD_S = 60


class ComputeEngine:
    cloud = "Compute Engine"
    provider = "gce"
    notice_s = 30.0
    interval_s = 0.0

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._etag = ""

    async def is_here(self) -> bool:
        answer = await self._server.ask("GET", "/computeMetadata/v1/", headers=FLAVOR)
        return answer.status == 200 and _is_google(answer)

    async def current_notice(self) -> PreemptionNotice | None:
        """The first question is answered at once; each one after it when the value is no longer the last one."""
        etag, self._etag = self._etag, ""  # after a failure the current value counts, not a change of it
        held = f"?wait_for_change=true&timeout_sec={HELD_S}&last_etag={quote(etag, safe='')}" if etag else ""
        answer_s = HELD_S + 10.0 if etag else 5.0
        answer = await self._server.ask("GET", f"{PREEMPTED}{held}", headers=FLAVOR, answer_s=answer_s)
        if answer.status != 200:
            raise unexpected(answer, PREEMPTED)
        if not _is_google(answer):
            raise MetadataError(f"the answer to {PREEMPTED} has no header Metadata-Flavor: it is not Google's server")
        value = answer.body.strip().upper()
        if value not in (b"TRUE", b"FALSE"):
            raise unreadable(answer, PREEMPTED, "TRUE or FALSE")
        self._etag = answer.headers.get("ETag", "")
        return PreemptionNotice(cloud=self.cloud) if value == b"TRUE" else None


def _is_google(answer: MetadataAnswer) -> bool:
    """Whoever else answers at this address does not know the header."""
    return answer.headers.get("Metadata-Flavor", "") == "Google"
