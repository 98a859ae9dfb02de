"""One run of a CheckpointBackup: the training saves, and its checkpoint goes to a registry as an image of one layer.

Nothing is kept of a run: a sidecar that was killed carries it out anew, and finds an image that is pushed already.
"""

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from holdfast.api.backup_runs import MOST_MESSAGE, BackupProgress, BackupState, WantedBackup
from holdfast.api.credentials import CredentialRefused, CredentialRequest, RegistryCredential
from holdfast.checkpoints.errors import CheckpointError, Corrupt, Incomplete
from holdfast.checkpoints.images.errors import ImageError, RegistryUnreachable
from holdfast.checkpoints.images.image import (
    LAYER_TYPE,
    ZSTD_LAYER_TYPE,
    Blob,
    ImageFacts,
    file_blob,
    parse_manifest,
)
from holdfast.checkpoints.images.layer import CheckpointLayer, compress_blob, is_compressible
from holdfast.checkpoints.images.newest import owned_image
from holdfast.checkpoints.images.reference import registry_address
from holdfast.checkpoints.images.registry import RegistryClient, push_image
from holdfast.errors import HoldfastError
from holdfast.sidecar.backup_source import BackupSource, ChosenCheckpoint, PackedCheckpoint
from holdfast.sidecar.backups import Report
from holdfast.sidecar.reporter import OperatorClient, ReportNotDelivered

RETRY_S = 2.0
# A training may replace a checkpoint while it is read; then the newest one is taken.
MAX_TRIES = 5
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

OpenSource: TypeAlias = Callable[[], Awaitable[BackupSource | None]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BackupFailure(HoldfastError):
    """Why a run fails: a reason in one word, and a sentence."""

    def __init__(self, reason: str, message: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_retryable = is_retryable


class _Layer(NamedTuple):
    blob: Blob
    media_type: str
    diff_id: str = ""


class SidecarBackupRun:
    """open_source: waits until the training has begun; None where the job keeps no checkpoints."""

    def __init__(self, wanted: WantedBackup, open_source: OpenSource, operator: OperatorClient, report: Report) -> None:
        self._wanted = wanted
        self._open_source = open_source
        self._operator = operator
        self._report = report
        self._deadline_s = time.monotonic() + wanted.seconds_left
        self._progress = BackupProgress(uid=wanted.uid, run=wanted.run, state="accepted")

    async def run(self) -> None:
        """Carry it out until its deadline, and report how it ends."""
        self._report(self._progress)
        try:
            async with asyncio.timeout(self._left_s) as deadline:
                await self._carry_out()
        except BackupFailure as failure:
            self._fail(failure.reason, str(failure), is_retryable=failure.is_retryable)
        except CredentialRefused as error:
            self._fail("CredentialRefused", str(error))
        except CheckpointError as error:
            self._fail(type(error).__name__, str(error), is_retryable=isinstance(error, RegistryUnreachable))
        except OSError as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                self._fail(
                    "DeadlineExceeded",
                    f"the run was not done within its {self._wanted.seconds_left:.0f} s: {self._doing}; raise "
                    "timeoutSeconds if it only needs longer",
                    is_retryable=True,
                )
            else:
                self._fail("StorageError", f"the checkpoint can't be read: {error.strerror or type(error).__name__}")
        except Exception:
            log.exception("an error in holdfast: the backup fails")
            self._fail("InternalError", "an error in holdfast: the sidecar's log says more", is_retryable=True)

    async def _carry_out(self) -> None:
        source = _usable(await self._open_source())
        credential = await self._credential()
        self._report_state("saving", self._asking(source))
        reason = f"CheckpointBackup {self._wanted.namespace}/{self._wanted.backup}, run {self._wanted.run}"
        for tries_left in reversed(range(MAX_TRIES)):
            chosen = await source.choose(reason, self._left_s)
            try:
                await self._pack_and_push(source, chosen, credential)
                return
            except (Incomplete, Corrupt, FileNotFoundError) as error:
                # The registry's own digest error is final; a checkpoint that was replaced is not.
                if isinstance(error, ImageError) or not tries_left:
                    raise
                log.info("the checkpoint was replaced while it was packed; the newest is taken", reason=str(error))

    def _asking(self, source: BackupSource) -> str:
        if source.saves_on_request:
            return f"waiting for the training to save, for half of the {self._left_s:.0f} s that are left"
        return "waiting for a complete checkpoint: the training does not save on request"

    async def _pack_and_push(
        self, source: BackupSource, chosen: ChosenCheckpoint, credential: RegistryCredential
    ) -> None:
        async with source.opened(chosen.name) as packed:
            self._progress = msgspec.structs.replace(
                self._progress, checkpoint=_printable(chosen.address), saved_at=packed.manifest.about.saved_at[:40]
            )
            self._report_state("saved", chosen.note or f"{chosen.name} was saved for this backup")
            self._report_state("packing", chosen.note)
            layer = await asyncio.to_thread(self._layer, packed, source.scratch)
            self._progress = msgspec.structs.replace(self._progress, bytes=layer.blob.size)
            self._report_state("packed", chosen.note)
            async with self._registry(credential) as registry:
                self._report_state("pushing", chosen.note)
                if not await self._is_pushed_already(registry, chosen.note):
                    await self._push(registry, packed, layer, chosen.note)

    def _layer(self, packed: PackedCheckpoint, scratch: Path) -> _Layer:
        layer = CheckpointLayer(packed.folder, packed.manifest)
        if self._wanted.compression == "none" or not is_compressible(layer):
            return _Layer(layer, LAYER_TYPE)
        scratch.mkdir(parents=True, exist_ok=True)
        target = scratch / "layer.tar.zst"
        diff_id = compress_blob(layer, target)
        return _Layer(file_blob(target), ZSTD_LAYER_TYPE, diff_id)

    async def _is_pushed_already(self, registry: RegistryClient, note: str) -> bool:
        """Whether an earlier start of this sidecar has pushed the image: the tag names it, and it is of this run."""
        wanted = self._wanted
        digest = await registry.resolve_tag(wanted.repository, wanted.tag)
        if digest is None:
            return False
        content = await registry.manifest(wanted.repository, digest)
        found = owned_image(wanted.tag, content)
        if found is None or (found.owner_uid, found.run, found.container) != (
            wanted.owner_uid,
            wanted.run,
            wanted.container,
        ):
            return False
        size = sum(layer.size for layer in parse_manifest(content, wanted.tag).layers)
        self._pushed(registry, digest, size, note)
        return True

    async def _push(self, registry: RegistryClient, packed: PackedCheckpoint, layer: _Layer, note: str) -> None:
        wanted = self._wanted
        pushed = await push_image(
            registry,
            wanted.repository,
            wanted.tag,
            _facts(wanted, packed.manifest.about.saved_at),
            layer.blob,
            media_type=layer.media_type,
            diff_id=layer.diff_id,
        )
        self._pushed(registry, pushed.digest, pushed.layer.size, note)

    def _pushed(self, registry: RegistryClient, digest: str, size: int, note: str) -> None:
        image = f"{registry.address.host}/{self._wanted.repository}:{self._wanted.tag}"
        self._progress = msgspec.structs.replace(self._progress, image=image[:1024], digest=digest, bytes=size)
        self._report_state("pushed", note)

    async def _credential(self) -> RegistryCredential:
        wanted = self._wanted
        request = CredentialRequest(namespace=wanted.namespace, backup=wanted.backup, uid=wanted.uid, run=wanted.run)
        while True:
            try:
                return await self._operator.credential(request)
            except ReportNotDelivered as error:
                self._report_state("accepted", f"waiting for the registry's credential: {error}")
            await asyncio.sleep(RETRY_S)

    @asynccontextmanager
    async def _registry(self, credential: RegistryCredential) -> AsyncIterator[RegistryClient]:
        host = self._wanted.registry_url.rpartition("://")[2].removesuffix("/").lower()
        plain_http = (host,) if self._wanted.plain_http else ()
        address = registry_address(self._wanted.registry_url, plain_http)
        client = RegistryClient(address, credential, deadline_s=self._deadline_s, plain_http=plain_http)
        async with client:
            yield client

    @property
    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def _doing(self) -> str:
        return f"it was {self._progress.state}" + (f" ({self._progress.message})" if self._progress.message else "")

    def _report_state(self, state: BackupState, message: str) -> None:
        self._progress = msgspec.structs.replace(self._progress, state=state, message=message[:MOST_MESSAGE])
        self._report(self._progress)

    def _fail(self, reason: str, message: str, *, is_retryable: bool = False) -> None:
        self._progress = msgspec.structs.replace(self._progress, reason=reason, is_retryable=is_retryable)
        self._report_state("failed", message)


def _usable(source: BackupSource | None) -> BackupSource:
    if source is None:
        raise BackupFailure(
            "NoCheckpoints", "the job keeps no checkpoints: give it checkpoint.storage, or use mode container"
        )
    if source.is_partial:
        raise BackupFailure(
            "NotWorkerZero", "this worker holds only its part of checkpoints: name the pod of worker 0 in podRef"
        )
    return source


def _facts(wanted: WantedBackup, created: str) -> ImageFacts:
    return ImageFacts(
        mode="application",
        owner_uid=wanted.owner_uid,
        owner_kind=wanted.owner_kind,
        owner_name=wanted.owner_name,
        container=wanted.container,
        run=wanted.run,
        created=created,
        replica=wanted.replica,
        attempt=wanted.attempt,
        pod_name=wanted.pod_name,
        pod_namespace=wanted.namespace,
        pod_uid=wanted.pod_uid,
        base_image=wanted.base_image,
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:2048]
