"""Starts the parts of a single-node cluster, and stops them in order."""

import asyncio
import fcntl
import os
import platform
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from random import SystemRandom

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.api.core.objects import Pod as AnyPod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.errors import HoldfastError
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import add_kube_controllers
from holdfast.local.kubelet.devices import find
from holdfast.local.kubelet.kubelet import Kubelet, ReadLog, identity_of
from holdfast.local.kubelet.objects import Pod
from holdfast.pods.template import Defaults
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.reports.server import ReportReceiver
from holdfast.trainingjob.worker_logs import keep_ended

# Only one `up` at a time may use a data folder.

LOCK = "lock"


class InUse(HoldfastError):
    """Another process uses the data folder."""


class DataDirUnusable(HoldfastError):
    """The data folder can't be used."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """$HOLDFAST_DATA, else holdfast in the XDG data folder of the user."""
    if chosen := environment.get("HOLDFAST_DATA"):
        return Path(chosen)
    home = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "holdfast"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder inside the block; the kernel releases the lock however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            f"cannot use the data folder {folder}: {error.strerror}; choose another with --data"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise InUse(
                f"holdfast is up already in {folder} (process {owner or 'unknown'}): use it, stop it, "
                "or choose another folder with --data"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


# The hardware of this host, as the resources of a node.

PODS = 1000
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")


class Hardware(Struct, frozen=True, kw_only=True):
    cpus: int
    memory_mib: int
    gpus: int

    @property
    def resources(self) -> dict[str, str]:
        """The capacity of the Node."""
        amounts = {"cpu": str(self.cpus), "memory": f"{self.memory_mib}Mi", "pods": str(PODS)}
        return {**amounts, "nvidia.com/gpu": str(self.gpus)} if self.gpus else amounts

    def __str__(self) -> str:
        return f"{self.cpus} CPUs, {self.memory_mib / 1024:.0f} GiB of memory, {self.gpus} GPUs"


def detect_hardware(gpus: int | None = None) -> Hardware:
    """Detect CPUs, memory and GPUs; `gpus` overrides the output of nvidia-smi."""
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(),
        gpus=_count_gpus() if gpus is None else gpus,
    )


def _memory_mib() -> int:
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(line.split()[1]) // 1024


def _count_gpus() -> int:
    """The number of GPUs: nvidia-smi prints one line per GPU; 0 without a driver."""
    try:
        # The command is fixed; its location is the user's PATH, as for every command of a job here.
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(done.stdout.split())


DATABASE = "cluster.db"
LOOPBACK = "127.0.0.1"
# The image of a job without an image; the kubelet runs the reference trainer for it.
DEFAULT_IMAGE = f"holdfast:{__version__}"


class LocalCluster(Struct, frozen=True):
    """A running single-node cluster. The task `operating` ends early only by a crash, with its exception."""

    cluster: EmbeddedCluster
    machine: Kubelet
    operating: "asyncio.Task[None]"


@asynccontextmanager
async def local_cluster(data: Path, hardware: Hardware, *, limits: bool) -> AsyncIterator[LocalCluster]:
    """Run a cluster with all its state in the folder `data`; unfinished jobs in the folder continue.

    With `limits`, CPU and memory limits of containers are enforced where the kernel lets this process do so.
    """
    logs = _Logs()
    with locked(data):
        cluster = await open_cluster(
            data / DATABASE, now=utc_now, rng=SystemRandom(), pod_logs=logs.read, follow_logs=logs.follow
        )
        try:
            logs.kubelet = Kubelet(
                cluster,
                name=platform.node().lower(),
                data=data,
                resources=hardware.resources,
                now=utc_now,
                default_image=DEFAULT_IMAGE,
                cgroups=find(identity_of(data)) if limits else None,
                issue_token=partial(_issue_token, cluster),
                ended=partial(_store_log, cluster),
            )
            async with logs.kubelet.running(), _operating(cluster, logs.kubelet) as operating:
                yield LocalCluster(cluster, logs.kubelet, operating)
        finally:
            await cluster.close()


async def _store_log(cluster: EmbeddedCluster, pod: Pod, status: JSON, read: ReadLog) -> None:
    """Store the log of every worker that ends, so that the logs of all workers of an attempt exist afterwards."""
    metadata, spec = msgspec.to_builtins(pod.metadata), {"nodeName": pod.spec.node_name}
    await keep_ended(cluster, msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, AnyPod), read)


def _issue_token(cluster: EmbeddedCluster, pod: Pod, audience: str) -> str:
    account = pod.spec.service_account_name
    return cluster.issue_token(pod.metadata.key, uid=pod.metadata.uid, account=account, audience=audience)


class _Logs:
    """Serves logs from the kubelet, which is created after the cluster that serves the logs."""

    kubelet: Kubelet

    async def read(self, key: Key, container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
        return await self.kubelet.pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)

    def follow(self, key: Key, container: str, tail_lines: int | None) -> AsyncIterator[bytes]:
        return self.kubelet.follow_log(key, container=container, tail_lines=tail_lines)


@asynccontextmanager
async def _operating(cluster: EmbeddedCluster, kubelet: Kubelet) -> AsyncIterator["asyncio.Task[None]"]:
    operator = Operator(
        cluster,
        identity=f"{platform.node()}-up",
        now=utc_now,
        random=SystemRandom(),
        metrics=Metrics(),
        settings=Settings(),
    )
    add_kube_controllers(operator, cluster, now=utc_now, reclaim=kubelet.reclaim)
    defaults = Defaults(
        image=DEFAULT_IMAGE,
        holdfast_image=DEFAULT_IMAGE,
        shared_loopback=True,
        sidecar_reserves=False,
        local_folders=True,
    )
    receiver, ledger = ReportReceiver(now=utc_now), SharedLedger(operator)
    operator.add(
        training_job_controller(operator, cluster, defaults=defaults, now=utc_now, office=receiver, room=ledger)
    )
    operator.add(gpu_workload_controller(operator, cluster, defaults=defaults, now=utc_now, room=ledger))
    reports = receiver.serve(operator, cluster, leading=lambda: True, address=LOOPBACK, port=0, host=LOOPBACK)
    async with reports:
        operating = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operating
        finally:
            operator.stop()
            await asyncio.wait([operating])
