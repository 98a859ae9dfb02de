"""`holdfast logs`: what a pod, or a TrainingJob's workers, have said."""

import asyncio
import sys
from contextlib import aclosing, suppress
from typing import Annotated

import typer
from msgspec import Struct

from holdfast.api.builtin import Pod
from holdfast.api.meta import Key
from holdfast.cli.failing import Misused
from holdfast.cli.naming import find_kind
from holdfast.cli.target import Choice, ContextOption, KubeconfigOption, NamespaceOption, Session, run
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.workloads.trainingjob.names import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, attempt

LOOK_S = 0.5
# A line beyond this is shown in pieces: a worker may write for ever without ending one.
LONGEST_LINE = 2**20


class NoWorker(HoldfastError):
    """The job has no such worker, or not yet."""


class Options(Struct, frozen=True, kw_only=True):
    follow: bool
    tail: int | None
    worker: int
    all: bool
    container: str


def logs(
    what: Annotated[str, typer.Argument(help="A TrainingJob or a pod: NAME, tj/NAME or pod/NAME.", metavar="JOB|POD")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last lines, as many.", min=0)] = None,
    worker: Annotated[int, typer.Option(help="Which worker of the job.", min=0)] = 0,
    all_workers: Annotated[bool, typer.Option("--all", help="Every worker, each line with its number.")] = False,
    container: Annotated[str, typer.Option("--container", "-c", help="Which container of the pod.")] = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Print logs: holdfast logs -f mnist"""
    options = Options(follow=follow, tail=tail, worker=worker, all=all_workers, container=container)

    async def command(session: Session) -> int:
        pods = await _pods(session, what, options)
        several = len(pods) > 1
        if follow:
            await asyncio.gather(*(_follow(session, pod, options, several=several) for pod in pods))
            return 0
        for pod in pods:
            text = await session.cluster.pod_log(pod.metadata.key, container=container, tail_lines=tail)
            _write(pod, text, several=several)
        return 0

    run(Choice(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


async def _pods(session: Session, what: str, options: Options) -> list[Pod]:
    word, slash, name = what.rpartition("/")
    key = Key(session.namespace, name)
    kind = find_kind(word).resource.kind if slash else ""
    if kind == "TrainingJob":
        return await _workers(session, key, options)
    if kind == "Pod":
        return [await session.cluster.get(PODS, key)]
    if kind:
        raise Misused(f"{what}: only pods and TrainingJobs have logs: write pod/NAME or tj/NAME")
    with suppress(NotFound):
        return await _workers(session, key, options)
    with suppress(NotFound):
        return [await session.cluster.get(PODS, key)]
    raise NotFound(f"{key.namespace} has no TrainingJob and no pod {name!r}: `holdfast get tj,pods` lists them")


async def _workers(session: Session, key: Key, options: Options) -> list[Pod]:
    """The pods asked for, of the job's current attempt; with --follow they are waited for."""
    while True:
        job = await session.cluster.get(TRAINING_JOBS, key)
        labels = f"{JOB_LABEL}={key.name},{ATTEMPT_LABEL}={attempt(job)}"
        found = (await session.cluster.list(PODS, namespace=key.namespace, labels=labels)).items
        pods = _newest(found)
        chosen = list(pods.values()) if options.all else [pods[options.worker]] if options.worker in pods else []
        if len(chosen) == (job.spec.num_workers if options.all else 1) or (chosen and not options.follow):
            return chosen
        if options.worker >= job.spec.num_workers:
            raise NoWorker(f"{key} has {job.spec.num_workers} workers, 0 to {job.spec.num_workers - 1}")
        state = job.status.state if job.status else None
        if not options.follow or state in ("Completed", "Failed"):
            message = (job.status and job.status.message) or "its pods are not there"
            raise NoWorker(f"{key} has no log of that worker: it is {state or 'Pending'}: {message}")
        await asyncio.sleep(LOOK_S)


def _newest(pods: tuple[Pod, ...]) -> dict[int, Pod]:
    """Each worker's last pod, by the worker's number."""
    ordered = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    numbered = {int(pod.metadata.labels[INDEX_LABEL]): pod for pod in ordered if INDEX_LABEL in pod.metadata.labels}
    return dict(sorted(numbered.items()))


async def _follow(session: Session, pod: Pod, options: Options, *, several: bool) -> None:
    key = pod.metadata.key
    await _until_started(session, key)
    rest = b""
    chunks = session.cluster.follow_log(key, container=options.container, tail_lines=options.tail)
    async with aclosing(chunks):
        async for chunk in chunks:
            # Whole lines only where several write, and what is there at once where one does.
            whole, end, rest = (rest + chunk).rpartition(b"\n") if several else (chunk, b"", b"")
            if len(rest) > LONGEST_LINE:
                end, rest = end + rest, b""
            _write(pod, whole + end, several=several)
    _write(pod, rest, several=several)


async def _until_started(session: Session, key: Key) -> None:
    while True:
        pod = await session.cluster.get(PODS, key)
        if pod.status.phase != "Pending":
            return
        await asyncio.sleep(LOOK_S)


def _write(pod: Pod, text: bytes, *, several: bool) -> None:
    if several:
        number = pod.metadata.labels.get(INDEX_LABEL, "?")
        text = b"".join(f"[{number}] ".encode() + line + b"\n" for line in text.splitlines())
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
