"""Turns the spec of a container into the command that starts the container."""

import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from holdfast.local.kubelet import environment, logs, volumes
from holdfast.local.kubelet.context import ContainerContext, PodAddresses
from holdfast.local.kubelet.devices import Cgroup, cuda_env
from holdfast.local.kubelet.environment import DeclaredEnv, base, declared
from holdfast.local.kubelet.objects import RetryLater, RunnableContainer
from holdfast.local.kubelet.processes import Launch
from holdfast.local.kubelet.volumes import Mount

# TensorBoard is adapted: the pods of this node share one network, and TensorBoard may not be installed.

TENSORBOARD = "tensorboard"
EVERYWHERE = "--bind_all"


class NotInstalled(RetryLater):
    """A program that an image would contain is not installed on this node."""

    reason = "CreateContainerError"


def adapted_to_tensorboard(argv: tuple[str, ...], *, address: str, path: str) -> tuple[str, ...]:
    """Make TensorBoard listen on the pod's own address: two jobs can use the same port, and no other host reaches it.

    Any other command stays unchanged. Raises `NotInstalled`, so that the pod waits until TensorBoard is installed.
    """
    if argv[0] != TENSORBOARD:
        return argv
    if shutil.which(TENSORBOARD, path=path) is None:
        raise NotInstalled(
            f"{TENSORBOARD} is not on this machine: install it beside holdfast (pip install {TENSORBOARD}), and "
            "the pod starts by itself"
        )
    return tuple(f"--host={address}" if word == EVERYWHERE else word for word in argv)


# Rendezvous ports, on a node whose pods share one network.
#
# PyTorch and JAX listen for their workers on every address of the host. Two jobs with the same port would fail, or
# worse, workers of one job would join the other job. So the rendezvous variables of each job get a unique port.

PAIRS = (("MASTER_ADDR", "MASTER_PORT"), ("PET_MASTER_ADDR", "PET_MASTER_PORT"))
JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"


def with_unique_ports(variables: DeclaredEnv, holder: str, addresses: PodAddresses) -> DeclaredEnv:
    """The variables with rendezvous ports that no other job uses. Values from a Secret are never changed."""
    written = {name: value for name, value in variables.values.items() if name not in variables.secret}

    def own(host: str, port: str) -> str:
        return str(addresses.port(addresses.resolve(holder, host), int(port))) if _is_port(port) else port

    replaced = {port: own(written[host], written[port]) for host, port in PAIRS if host in written and port in written}
    if JAX_COORDINATOR in written:
        host, colon, port = written[JAX_COORDINATOR].rpartition(":")
        replaced[JAX_COORDINATOR] = f"{host}{colon}{own(host, port)}"
    return variables.put(replaced, secret=False)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


ROOT = "HOLDFAST_ROOT"
TERMINATION_LOG = "HOLDFAST_TERMINATION_LOG"


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """Everything that starting a container needs, and later its probes and its termination message."""

    launch: Launch
    rewrite: Callable[[str], str]
    message_file: Path
    cgroup: Cgroup | None


async def prepare(container: RunnableContainer, context: ContainerContext, restart: int) -> LaunchPlan:
    """Prepare the start of a container. Raises `RetryLater` while a referenced object is missing."""
    host, pod_context = context.host, context.pod_context
    found = await environment.fetch(
        host.cluster, pod_context.pod.metadata.namespace, environment.of_container(container)
    )
    variables = with_unique_ports(declared(container, pod_context, found), context.uid, host.addresses)
    own = context.folder / "containers" / container.name
    message_file = _folders(own)
    paths = volumes.mounts(container, context.volumes, variables.values)
    volumes.link(own / "root", paths)
    if container.termination_message_path:
        paths = [Mount(container.termination_message_path, message_file), *paths]

    def rewrite(text: str) -> str:
        return volumes.rewrite(host.addresses.resolve(context.uid, text), paths)

    env = {
        **base(pod_context, own / "work", own / "tmp"),
        **variables.rewritten(rewrite),
        **cuda_env(context.devices),
        ROOT: str(own / "root"),
        TERMINATION_LOG: str(message_file),
        **context.marker,
    }
    log = _log(context, container.name, restart)
    cgroup = host.cgroups.make(context.uid, container) if host.cgroups else None
    argv = host.commands.argv(container, variables.values, rewrite)
    launch = Launch(
        argv=adapted_to_tensorboard(argv, address=pod_context.pod_ip, path=env["PATH"]),
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


def _log(context: ContainerContext, container: str, restart: int) -> Path:
    folder = context.host.logs(context.uid)
    logs.forget_old(folder, container, restart)
    path = logs.log_file(folder, container, restart)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
