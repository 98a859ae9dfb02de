"""What the commands of `holdfast checkpoints` do: list, verify, prune, download."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec
import typer
from msgspec import MsgspecError

from holdfast.api.checkpoint import Checkpoint
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.checkpoints.errors import Corrupt
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.cli.checkpoints import operations as messages
from holdfast.cli.checkpoints.access import AccessOptions, CheckpointAccess, open_access
from holdfast.cli.checkpoints.operations import (
    CheckpointInfo,
    EndOfStream,
    ListRequest,
    PruneRequest,
    PruneResult,
    RequestFailed,
    VerifyRequest,
    VerifyResult,
    Which,
    run_request,
)
from holdfast.cli.checkpoints.view import VolumeView
from holdfast.cli.errors import FAILED, INTERRUPTED, UsageError, printable
from holdfast.cli.get import aligned, to_json, to_yaml
from holdfast.cli.options import CheckpointOutputFormat
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import ClusterOptions, Session, run
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.times import age
from holdfast.trainingjob.objects.names import attempt
from holdfast.trainingjob.objects.storage import best_by

# No worker writes in these states; the workers of a suspended job are gone, too.
IDLE_STATES = ("Completed", "Failed", "Suspended")

Action: TypeAlias = Callable[[Session, TrainingJob, CheckpointAccess], Awaitable[int]]


def run_action(action: Action, name: str, options: AccessOptions, cluster: ClusterOptions) -> None:
    """Run an action on the job with that name, and exit with its exit code."""

    async def with_access(session: Session) -> int:
        job = await session.cluster.get(TRAINING_JOBS, Key(session.namespace, _job_name(name)))
        try:
            async with open_access(session, job, options) as access:
                return await action(session, job, access)
        except asyncio.CancelledError:
            # A thread can't be cancelled, and the interpreter would wait for it, as for the rest of a download.
            sys.stdout.flush()
            os._exit(INTERRUPTED)

    run(cluster, with_access)


def list_checkpoints(output: CheckpointOutputFormat, *, headers: bool) -> Action:
    async def action(session: Session, job: TrainingJob, access: CheckpointAccess) -> int:
        request = ListRequest(job=job.metadata.uid, attempt=attempt(job), running=_is_running(job), by=best_by(job))
        async with aclosing(access.run_request(request)) as steps:
            saved = [fact async for fact in steps if isinstance(fact, CheckpointInfo)]
        if output in (CheckpointOutputFormat.YAML, CheckpointOutputFormat.JSON):
            whole = document(job.metadata.name, access.address, saved)
            typer.echo(to_yaml(whole) if output is CheckpointOutputFormat.YAML else to_json(whole))
        elif saved:
            wide = output is CheckpointOutputFormat.WIDE
            typer.echo("\n".join(table(saved, session.now(), wide=wide, headers=headers)))
        else:
            _print_none(job, access)
        return 0

    return action


def verify_checkpoints(epoch: int | None) -> Action:
    async def action(_session: Session, job: TrainingJob, access: CheckpointAccess) -> int:
        damaged, count = False, 0
        async with aclosing(access.run_request(VerifyRequest(epoch=epoch))) as steps:
            async for fact in steps:
                if isinstance(fact, VerifyResult):
                    typer.echo("\n".join(verified_lines(fact)))
                    damaged, count = damaged or bool(fact.damage), count + 1
        if not count:
            _print_none(job, access)
        return FAILED if damaged else 0

    return action


def prune_checkpoints(keep: int, *, delete: bool) -> Action:
    async def action(_session: Session, job: TrainingJob, access: CheckpointAccess) -> int:
        _check_retention(job, keep)
        request = PruneRequest(job=job.metadata.uid, attempt=attempt(job), keep=keep, delete=delete, by=best_by(job))
        gone, freed = 0, 0
        async with aclosing(access.run_request(request)) as steps:
            async for fact in steps:
                if isinstance(fact, PruneResult):
                    typer.echo(prune_line(fact))
                    gone, freed = gone + 1, freed + (fact.saved.bytes or 0)
        if not gone:
            typer.echo(
                printable(f"Nothing to delete: {job.metadata.name} has no more than {keep} in {access.address}.")
            )
        elif delete:
            typer.echo(f"{gone} deleted, {size(freed)} in all.")
        else:
            typer.echo(f"Nothing was deleted yet: {gone} would go, {size(freed)} in all. Say --yes to delete.")
        return 0

    return action


def download_checkpoint(epoch: int | None, output: Path | None, *, best: bool) -> Action:
    async def action(_session: Session, job: TrainingJob, access: CheckpointAccess) -> int:
        if best and epoch is not None:
            raise UsageError("--best and --epoch name different checkpoints: use one of them")
        made: dict[CheckpointName, Path] = {}

        def target(name: CheckpointName) -> Path:
            made[name] = _free(output or Path(f"{job.metadata.name}-epoch-{name.epoch}"))
            if sys.stderr.isatty():
                typer.echo(f"downloading {name} …", err=True)
            # The path of the user may contain links; unpacking follows no links.
            return Path(os.path.realpath(made[name].parent)) / made[name].name

        if output is not None:
            _free(output)
        which = Which(epoch=epoch, best_by=best_by(job) if best else None)
        try:
            name, manifest = await access.download(which, target)
        except Corrupt as error:
            damaged = next(iter(made), "it")
            raise Corrupt(
                f"nothing was downloaded, {damaged} is damaged: {error}; choose another with --epoch"
            ) from None
        typer.echo(f"{name}: {size(manifest.size)} in {len(manifest.files)} files, each as it was saved: {made[name]}")
        return 0

    return action


def run_in_pod(folder: Path, request: str) -> None:
    """The work itself, in the pod that a command has started, with the results as lines of JSON."""
    try:
        for fact in run_request(VolumeView(folder), messages.decode_request(request)):
            typer.echo(messages.encode(fact))
        typer.echo(messages.encode(EndOfStream()))
    except (HoldfastError, MsgspecError, OSError) as error:
        typer.echo(messages.encode(RequestFailed(message=str(error))))
        raise typer.Exit(FAILED) from None


def _job_name(what: str) -> str:
    kind, slash, name = what.rpartition("/")
    if slash and find_kind(kind).resource.kind != "TrainingJob":
        raise UsageError(f"{what}: only TrainingJobs have checkpoints: write NAME or tj/NAME")
    return name


def _print_none(job: TrainingJob, access: CheckpointAccess) -> None:
    typer.echo(printable(f"{job.metadata.name} has no checkpoint yet in {access.address}."), err=True)


def _is_running(job: TrainingJob) -> bool:
    return not (job.status and job.status.state in IDLE_STATES)


def _check_retention(job: TrainingJob, keep: int) -> None:
    retention = (job.spec.checkpoint or Checkpoint()).retention
    if _is_running(job) and keep < retention:
        state = (job.status and job.status.state) or "Pending"
        raise UsageError(
            f"{job.metadata.name} is {state} and keeps {retention} itself: use --keep {retention} or more, "
            "lower spec.checkpoint.retention, or suspend the job first"
        )


def _free(folder: Path) -> Path:
    if os.path.lexists(folder):
        raise UsageError(f"{folder} is there already, and nothing is overwritten: choose another with --output")
    return folder


# Output of checkpoints for users: tables, sizes and result lines.


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
HEADERS = ("EPOCH", "STEP", "ATTEMPT", "SIZE", "FILES", "SAVED", "VALID", "RESUME", "LOSS", "ACCURACY", "BEST")
WIDE_HEADERS = (*HEADERS, "WORKERS", "TIME", "PATH", "REASON")

VALID = {"valid": "yes", "undigested": "yes, undigested"}


def table(found: Iterable[CheckpointInfo], now: datetime, *, wide: bool, headers: bool) -> list[str]:
    rows = [_row(saved, now, wide=wide) for saved in found]
    first: list[Sequence[str]] = [WIDE_HEADERS if wide else HEADERS] if headers else []
    return aligned([*first, *rows])


def document(name: str, address: str, found: Sequence[CheckpointInfo]) -> JSON:
    """All facts as a document for -o yaml and -o json."""
    return {"job": name, "storage": address, "checkpoints": [_plain(saved) for saved in found]}


def size(count: int | None) -> str:
    """A readable size with at most 3 digits, so that columns stay narrow."""
    if count is None:
        return "-"
    value, unit = float(count), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 10 else 1
    return f"{value:.{digits}f} {UNITS[unit]}"


def display_name(saved: CheckpointInfo) -> str:
    return f"epoch {saved.epoch} of attempt {saved.attempt}"


def _row(saved: CheckpointInfo, now: datetime, *, wide: bool) -> list[str]:
    files = "-" if saved.files is None else str(saved.files)
    saved_age = f"{age(saved.saved_at, now)} ago" if saved.saved_at else "-"
    valid = VALID.get(saved.state, f"no, {saved.state}")
    step = "-" if saved.step is None else str(saved.step)
    position = [str(saved.epoch), step, str(saved.attempt)]
    row = [*position, size(saved.bytes), files, saved_age, valid, "next" * saved.resumes]
    row += [*(_number(saved.metrics.get(name)) for name in ("loss", "accuracy")), "best" * saved.best]
    if wide:
        workers = "-" if saved.workers is None else str(saved.workers)
        row += [workers, saved.saved_at or "-", saved.path, saved.reason]
    return [printable(cell) for cell in row]


def _number(metric: float | None) -> str:
    return "-" if metric is None else f"{metric:.4g}"


def _plain(saved: CheckpointInfo) -> JSON:
    facts: JSON = msgspec.to_builtins(saved)
    return {name: value for name, value in facts.items() if name != "type"}


def verified_lines(fact: VerifyResult) -> list[str]:
    """A line for the checkpoint, and a line for each damaged file."""
    saved = fact.saved
    if fact.damage:
        return [f"{display_name(saved)}: damaged", *(f"  {printable(sentence)}" for sentence in fact.damage)]
    if saved.files is None:
        return [f"{display_name(saved)}: left out, {saved.state}"]
    return [f"{display_name(saved)}: ok, {size(saved.bytes)} in {saved.files} files"]


def prune_line(fact: PruneResult) -> str:
    saved = fact.saved
    return f"{display_name(saved)}: {'deleted' if fact.deleted else 'would go'}, {size(saved.bytes)}"
