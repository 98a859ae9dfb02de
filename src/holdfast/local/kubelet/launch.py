"""From a container as it is declared to the command that starts it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from holdfast.local.kubelet import environment, logs, volumes
from holdfast.local.kubelet.context import ContainerContext, PodAddresses
from holdfast.local.kubelet.devices import Cgroup, cuda_env
from holdfast.local.kubelet.environment import DeclaredEnv, base, declared
from holdfast.local.kubelet.errors import RetryLater
from holdfast.local.kubelet.objects import Container
from holdfast.local.kubelet.processes import Launch
from holdfast.local.kubelet.volumes import Mount

# TensorBoard, on a machine whose pods share one network and which need not have it.

TENSORBOARD = "tensorboard"
EVERYWHERE = "--bind_all"


class NotInstalled(RetryLater):
    """A program that an image would bring along is not on this machine."""

    reason = "CreateContainerError"


def adapted_to_tensorboard(argv: tuple[str, ...], *, address: str, path: str) -> tuple[str, ...]:
    """The command, listening on the pod's own address: two jobs may have theirs at one port, and nobody else sees it.

    Any other command stays as it is. Raises `NotInstalled`, for the pod to wait until it is.
    """
    if argv[0] != TENSORBOARD:
        return argv
    if shutil.which(TENSORBOARD, path=path) is None:
        raise NotInstalled(
            f"{TENSORBOARD} is not on this machine: install it beside holdfast (pip install {TENSORBOARD}), and "
            "the pod starts by itself"
        )
    return tuple(f"--host={address}" if word == EVERYWHERE else word for word in argv)


# Where a job's workers meet, on a machine whose pods share one network.
#
# PyTorch and JAX listen for their workers on every address of the machine. Two jobs with one port would fail, or worse,
# one's workers would join the other's. So the variables by which they are told where to meet get a port of their own.

PAIRS = (("MASTER_ADDR", "MASTER_PORT"), ("PET_MASTER_ADDR", "PET_MASTER_PORT"))
JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"


def with_unique_ports(variables: DeclaredEnv, holder: str, addresses: PodAddresses) -> DeclaredEnv:
    """The variables, with ports on which no other job's workers meet. What came out of a Secret is never touched."""
    written = {name: value for name, value in variables.values.items() if name not in variables.secret}

    def own(host: str, port: str) -> str:
        return str(addresses.port(addresses.resolve(holder, host), int(port))) if _is_port(port) else port

    moved = {port: own(written[host], written[port]) for host, port in PAIRS if host in written and port in written}
    if JAX_COORDINATOR in written:
        host, colon, port = written[JAX_COORDINATOR].rpartition(":")
        moved[JAX_COORDINATOR] = f"{host}{colon}{own(host, port)}"
    return variables.put(moved, secret=False)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


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
    found = await environment.fetch(host.cluster, place.pod.metadata.namespace, environment.of_container(container))
    variables = with_unique_ports(declared(container, place, found), around.uid, host.addresses)
    own = around.folder / "containers" / container.name
    message_file = _folders(own)
    paths = volumes.mounts(container, around.volumes, variables.values)
    volumes.link(own / "root", paths)
    if container.termination_message_path:
        paths = [Mount(container.termination_message_path, message_file), *paths]

    def rewrite(text: str) -> str:
        return volumes.rewrite(host.addresses.resolve(around.uid, text), paths)

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
        argv=adapted_to_tensorboard(argv, address=place.pod_ip, path=env["PATH"]),
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
