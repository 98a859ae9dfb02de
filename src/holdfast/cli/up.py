"""`holdfast up`: a single-node cluster on this host."""

import ast
import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import typer
import uvloop
from msgspec import Struct

from holdfast.api.kinds import kind_of
from holdfast.api.meta import WORKING_DIRECTORY, Key
from holdfast.cli.errors import UsageError, errors_as_one_line, printable
from holdfast.cli.resource_args import find_kind, this_command
from holdfast.cli.session import Session
from holdfast.cli.up_lines import print_what_happens
from holdfast.cluster.errors import AlreadyExists, ClusterError, NotFound
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KnownKind, RawObject
from holdfast.local.host import Hardware, default_folder, detect_hardware
from holdfast.runtime.process import configure, level_from, on_signal, utc_now
from holdfast.times import is_duration, parse_duration_s

if TYPE_CHECKING:
    from holdfast.providers.local.provider import SpotMarket

# Behaviour of commands that applies only to a `holdfast up` on this host.


INTERPRETERS = ("python", "python3")
# Kinds that run a program of the user, and the fields with the program.
PROGRAMS = ("TrainingJob", "GPUWorkload", "SpotInstanceJob")
RUNS = {"command", "args", "jobTemplate"}


async def create_object(session: Session, known: KnownKind, document: JSON) -> RawObject:
    """Create an object. Only `holdfast up` creates a missing namespace first; elsewhere an administrator has to."""
    namespace = document["metadata"].get("namespace", "") if known.resource.namespaced else ""
    try:
        return await session.cluster.create(known.resource, document, namespace=namespace)
    except NotFound as error:
        if not namespace or f'namespaces "{namespace}" not found' not in str(error):
            raise
        if session.data is None:
            raise NotFound(f"{error}: create it with `holdfast create namespace {namespace}`") from None
    try:
        await session.cluster.create(find_kind("namespace").resource, {"metadata": {"name": namespace}})
        typer.echo(f"namespace/{namespace} created, because it was missing")
    except AlreadyExists:
        pass  # another command has created it meanwhile
    return await session.cluster.create(known.resource, document, namespace=namespace)


def apply_folder(session: Session, wanted: JSON) -> str:
    """The working directory of the manifest's command on `holdfast up`; empty where none applies."""
    kind, spec = kind_of(str(wanted.get("apiVersion")), str(wanted.get("kind"))), wanted.get("spec")
    if session.data is None or kind is None or kind.kind not in PROGRAMS or not isinstance(spec, dict):
        return ""
    annotations = wanted["metadata"].get("annotations")
    if not any(spec.get(name) for name in RUNS) or (isinstance(annotations, dict) and WORKING_DIRECTORY in annotations):
        return ""
    with suppress(OSError):  # the folder is gone
        return str(Path.cwd())
    return ""


def running_in(folder: str) -> str:
    return f"; its command runs in {printable(folder)}" if folder else ""


async def image_note(session: Session, namespace: str, document: JSON) -> str:
    """A hint for a job with an image: `holdfast up` does not run images, and what the command lacks on this host."""
    spec = _program(document)
    if session.data is None or not spec.get("image") or not spec.get("command"):
        return ""
    command = [
        argument for field in ("command", "args") for argument in spec.get(field) or () if isinstance(argument, str)
    ]
    missing_note = await _missing_note(session, namespace, spec, command)
    python = f"Python {platform.python_version()}"
    return f"its image is not run on one machine: {command[0]} runs on this machine, with {python}{missing_note}"


def _program(document: JSON) -> JSON:
    """The fields about the program; of a pod with several containers, those of the first one."""
    try:
        spec = document["spec"]
        if "jobTemplate" not in spec:
            return dict(spec)
        pod = spec["jobTemplate"]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        mounts = {"volumeMounts": container.get("volumeMounts"), "volumes": pod.get("volumes")}
        return {**container, "podTemplate": mounts}
    except (LookupError, TypeError, ValueError):
        return {}


async def _missing_note(session: Session, namespace: str, spec: JSON, command: list[str]) -> str:
    program, arguments = command[0], command[1:]
    if program not in INTERPRETERS:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        return (
            ""
            if shutil.which(program, path=path)
            else f"; there is no {program} here: install it where holdfast is installed"
        )
    script = arguments[0] if arguments and arguments[0].endswith(".py") else ""
    imported = dict.fromkeys(_imports(await _text(session, namespace, spec, script)))
    missing = [name for name in imported if not _is_installed(name) and not _is_beside(name, Path(script))]
    return f"; {PurePosixPath(script).name} imports {', '.join(missing)}, which it does not have" if missing else ""


async def _text(session: Session, namespace: str, spec: JSON, script: str) -> str:
    """The script, from the ConfigMap that is mounted at its folder or from this host; empty if unreadable."""
    path = PurePosixPath(script)
    name = _config_map_at(spec.get("podTemplate"), str(path.parent)) if script else ""
    try:
        if name:
            found = await session.cluster.get(find_kind("configmap").resource, Key(namespace, name))
            return str((found.document.get("data") or {}).get(path.name, ""))
    except ClusterError:
        return ""  # the job itself reports what it waits for
    return _read(Path(script)) if script else ""


def _read(script: Path) -> str:
    try:
        return script.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _config_map_at(overlay: Any, folder: str) -> str:
    """The name of the ConfigMap that a job mounts at that folder."""
    try:
        mounted = [mount["name"] for mount in overlay["volumeMounts"] if mount["mountPath"].rstrip("/") == folder]
        return next(str(volume["configMap"]["name"]) for volume in overlay["volumes"] if volume["name"] in mounted)
    except (LookupError, TypeError, AttributeError, StopIteration):
        return ""


def _imports(text: str) -> Iterator[str]:
    """The packages that a script imports at top level; imports in functions and conditions may be optional."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module.partition(".")[0]


def _is_beside(package: str, script: Path) -> bool:
    return any((script.parent / name).exists() for name in (package, f"{package}.py"))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


class MarketOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line about spot machines."""

    notice: str
    trace: Path | None
    speed: float


def run_local_cluster(
    data: Path | None, gpus: int | None, *, limits: bool, market: MarketOptions, verbose: bool
) -> None:
    with errors_as_one_line():
        configure(level_from({"LOG_LEVEL": "info" if verbose else "warning", **os.environ}))
        found = _read_market(market)
        uvloop.run(_up(data or default_folder(os.environ), detect_hardware(gpus), limits=limits, market=found))


def _read_market(options: MarketOptions) -> "SpotMarket":
    from holdfast.providers.local.provider import SpotMarket
    from holdfast.providers.local.trace import InvalidTrace, parse_trace

    if not is_duration(options.notice):
        raise UsageError(f"--preemption-notice {options.notice} is no duration: write one such as 30s or 2m")
    trace = None
    if options.trace is not None:
        try:
            trace = parse_trace(options.trace.read_text(errors="replace"))
        except OSError as error:
            raise UsageError(f"--preemption-trace {options.trace} can't be read: {error.strerror}") from None
        except InvalidTrace as error:
            raise UsageError(f"{options.trace}: {error}") from None
    return SpotMarket(notice_s=parse_duration_s(options.notice), trace=trace, speed=options.speed)


async def _up(data: Path, hardware: Hardware, *, limits: bool, market: "SpotMarket") -> None:
    # Not at the top: other commands and the operator should not load a whole cluster.
    from holdfast.cluster.login import KUBECONFIG
    from holdfast.local.apiserver.http.app import serve
    from holdfast.local.up import local_cluster

    stop_requested = asyncio.Event()
    # Until the workers have stopped: a second signal must not end this process before the workers have saved.
    with on_signal(stop_requested.set):
        async with (
            local_cluster(data, hardware, limits=limits, market=market) as local,
            serve(local.cluster, data, now=utc_now),
        ):
            typer.echo(f"holdfast is up with {hardware}; its data is in {data}")
            command = this_command()
            typer.echo(f"In another terminal: {command} apply -f job.yaml, {command} get tj -w")
            typer.echo(f"kubectl works too: export KUBECONFIG={data / KUBECONFIG}")
            typer.echo(f"A registry for checkpoint images (CheckpointBackup) is at {local.registry}")
            printing = asyncio.create_task(print_what_happens(local.cluster))
            stop = asyncio.create_task(stop_requested.wait())
            await asyncio.wait([stop, local.operating, printing], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if printing.done():
                await printing
            printing.cancel()
            if local.operating.done():
                await local.operating  # a part has crashed: raise its error
            typer.echo("stopping the workers; the jobs go on at the next start")
