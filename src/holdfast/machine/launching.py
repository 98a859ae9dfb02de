"""From a container as it is declared to the command that starts it."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from holdfast.machine import logs, mounts, sources, tensorboard
from holdfast.machine.cgroups import Cgroup
from holdfast.machine.environment import base, declared
from holdfast.machine.gpus import cuda_env
from holdfast.machine.host import ContainerContext
from holdfast.machine.meeting import with_unique_ports
from holdfast.machine.mounts import Mount
from holdfast.machine.objects import Container
from holdfast.machine.processes import Launch

ROOT = "HOLDFAST_ROOT"
TERMINATION_LOG = "HOLDFAST_TERMINATION_LOG"


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """All that is needed to start a container, and to talk to it afterwards."""

    launch: Launch
    rewrite: Callable[[str], str]
    message_file: Path
    cgroup: Cgroup | None


async def prepare(container: Container, around: ContainerContext, restart: int) -> LaunchPlan:
    """Raises `NotYet` while something that it refers to is missing."""
    host, place = around.host, around.place
    found = await sources.fetch(host.cluster, place.pod.metadata.namespace, sources.of_container(container))
    variables = with_unique_ports(declared(container, place, found), around.uid, host.addresses)
    own = around.folder / "containers" / container.name
    message_file = _folders(own)
    paths = mounts.mounts(container, around.volumes, variables.values)
    mounts.link(own / "root", paths)
    if container.termination_message_path:
        paths = [Mount(container.termination_message_path, message_file), *paths]

    def rewrite(text: str) -> str:
        return mounts.rewrite(host.addresses.resolve(around.uid, text), paths)

    env = {
        **base(place, own / "work", own / "tmp"),
        **variables.rewritten(rewrite),
        **cuda_env(around.devices),
        ROOT: str(own / "root"),
        TERMINATION_LOG: str(message_file),
        **around.marker,
    }
    log = _log(around, container.name, restart)
    cgroup = host.cgroups.make(around.uid, container) if host.cgroups else None
    argv = host.commands.argv(container, variables.values, rewrite)
    launch = Launch(
        argv=tensorboard.adapted_to_tensorboard(argv, address=place.pod_ip, path=env["PATH"]),
        env=env,
        cwd=Path(rewrite(container.working_dir)) if container.working_dir else own / "work",
        log=log,
        cgroups=cgroup.entries if cgroup else (),
    )
    return LaunchPlan(launch=launch, rewrite=rewrite, message_file=message_file, cgroup=cgroup)


def _folders(own: Path) -> Path:
    for name in ("root", "work", "tmp"):
        (own / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    message_file = own / "termination-log"
    message_file.write_bytes(b"")
    return message_file


def _log(around: ContainerContext, container: str, restart: int) -> Path:
    folder = around.host.logs(around.uid)
    logs.forget_old(folder, container, restart)
    path = logs.log_file(folder, container, restart)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
