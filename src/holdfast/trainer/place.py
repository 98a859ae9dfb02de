"""Which worker of how many this process is, from the variables of the framework that the job names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.trainer.errors import BadSetting
from holdfast.trainer.values import integer

MAX_WORKERS = 1000
PYTORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JAX = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """A worker's rank among size workers; worker 0 listens on host and port."""

    rank: int = 0
    size: int = 1
    host: str = ""
    port: int = 0


def place(environ: Mapping[str, str]) -> RankInfo:
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        return _pytorch(environ)
    if environ.get("JAX_PROCESS_ID") or environ.get("JAX_NUM_PROCESSES"):
        return _jax(environ)
    if environ.get("TF_CONFIG"):
        return _tensorflow(environ["TF_CONFIG"])
    return RankInfo()


def _pytorch(environ: Mapping[str, str]) -> RankInfo:
    size = integer(_required(environ, PYTORCH), "WORLD_SIZE", 1, least=1, most=MAX_WORKERS)
    rank = integer(environ, "RANK", 0, most=size - 1)
    if size == 1:
        return RankInfo()
    port = integer(environ, "MASTER_PORT", 0, least=1, most=65535)
    return RankInfo(rank=rank, size=size, host=environ["MASTER_ADDR"], port=port)


def _jax(environ: Mapping[str, str]) -> RankInfo:
    size = integer(_required(environ, JAX), "JAX_NUM_PROCESSES", 1, least=1, most=MAX_WORKERS)
    rank = integer(environ, "JAX_PROCESS_ID", 0, most=size - 1)
    return _at("JAX_COORDINATOR_ADDRESS", environ["JAX_COORDINATOR_ADDRESS"], rank, size)


def _tensorflow(text: str) -> RankInfo:
    try:
        config = json.loads(text)
        kind, rank = str(config["task"]["type"]), int(config["task"]["index"])
        workers = [str(address) for address in config["cluster"]["worker"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadSetting('TF_CONFIG is not {"cluster": {"worker": […]}, "task": {"type": …, "index": …}}') from error
    if kind != "worker" or not 0 <= rank < len(workers):
        raise BadSetting(f"TF_CONFIG gives this process the task {kind} {rank}: there are {len(workers)} workers")
    return _at("TF_CONFIG's first worker", workers[0], rank, len(workers))


def _required(environ: Mapping[str, str], names: tuple[str, ...]) -> Mapping[str, str]:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        given = next(name for name in names if environ.get(name))
        raise BadSetting(f"{given} is set and {', '.join(missing)} not: set all of {', '.join(names)}, or none")
    return environ


def _at(source: str, address: str, rank: int, size: int) -> RankInfo:
    if size == 1:
        return RankInfo()
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadSetting(f"{source} is {address!r}: write host:port")
    return RankInfo(rank=rank, size=size, host=host.strip("[]"), port=int(port))
