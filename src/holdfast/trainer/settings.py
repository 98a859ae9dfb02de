"""The settings of a training, from environment variables that the operator sets, and its errors with exit codes."""

import errno
import hashlib
import json
import math
import re
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError

# The errors of a training, with their exit codes.


class TrainerError(HoldfastError):
    """The training failed. The text of the error is the one line that the user reads."""

    exit_code = 1


class InvalidTrainerSetting(TrainerError):
    """A setting is invalid or can't be used: a retry would not help."""

    exit_code = 2


# Transient errors: a disk that is full or does not respond may work in the next attempt.
TRANSIENT_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE)


def unusable(message: str, error: BaseException) -> TrainerError:
    """The error for a path that can't be used as the settings request."""
    is_transient = isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS
    return TrainerError(message) if is_transient else InvalidTrainerSetting(message)


class Diverged(TrainerError):
    """The loss is no longer a number."""


class GroupError(TrainerError):
    """The workers could not find each other."""


class WorkerLost(GroupError):
    """Another worker left without a failure message."""


class WorkerFailed(GroupError):
    """Another worker reported why it failed; this worker exits for the same reason."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(TrainerError):
    """A signal stopped the training."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


# Parsers for variables, each with an error message that names the valid values. Empty means not set.

Environ = Mapping[str, str]


def integer(environ: Environ, name: str, default: int, *, least: int = 0, most: int = 1_000_000_000) -> int:
    text = environ.get(name, "") or str(default)
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text) is None or not least <= int(text) <= most:
        raise InvalidTrainerSetting(f"{name} is {text!r}: write a whole number from {least} to {most}")
    return int(text)


def number(
    environ: Environ, name: str, default: float, *, above: float | None = None, below: float = math.inf
) -> float:
    """A finite number ≥ 0, or > above where that is given, and < below."""
    text = environ.get(name, "") or repr(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < below) or (above is not None and value <= above):
        least = "of at least 0" if above is None else f"above {above:g}"
        bound = "" if math.isinf(below) else f" and below {below:g}"
        raise InvalidTrainerSetting(f"{name} is {text!r}: write a number {least}{bound}")
    return value


def flag(environ: Environ, name: str) -> bool:
    return choice(environ, name, "false", ("true", "false")) == "true"


def choice(environ: Environ, name: str, default: str, known: Collection[str], *, otherwise: str = "") -> str:
    text = environ.get(name, "") or default
    if text not in known:
        raise InvalidTrainerSetting(f"{name} is {text!r}: the reference trainer knows {', '.join(known)}{otherwise}")
    return text


def path(environ: Environ, name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


MODELS = ("linear", "mlp", "cnn")
DATASETS = ("digits", "synthetic", "mnist")
# The default learning rate of each optimizer.
LEARNING_RATES = {"adam": 0.003, "sgd": 0.02, "adamw": 0.003, "rmsprop": 0.001}
PARAMS = (
    "PARAM_SEED",
    "PARAM_HIDDEN",
    "PARAM_CHANNELS",
    "PARAM_SAMPLES",
    "PARAM_MOMENTUM",
    "PARAM_WEIGHT_DECAY",
    "PARAM_JOIN_TIMEOUT",
)
OWN_PROGRAM = "; for another, give the job an image and a command of its own"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """The settings of one training. They are the same for every worker, except the paths."""

    model: str
    dataset: str
    learning_rate: float
    batch_size: int
    epochs: int
    optimizer: str
    warmup_steps: int
    accumulation_steps: int
    mixed_precision: bool
    seed: int
    hidden: int
    channels: int
    samples: int
    momentum: float
    weight_decay: float
    attempt: str
    join_timeout_s: float
    data_dir: Path
    checkpoint_dir: Path | None
    checkpoint_frequency: int
    checkpoint_interval_s: float | None
    resume_from: Path | None
    progress_file: Path | None
    notice_file: Path | None
    termination_log: Path | None

    @property
    def shape(self) -> dict[str, str | int]:
        """The settings that a checkpoint must share with the training that resumes from it."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "optimizer": self.optimizer,
            "seed": self.seed,
            "hidden": self.hidden,
            "channels": self.channels,
            "samples": self.samples,
        }

    @property
    def digest(self) -> str:
        """A hash that is the same for all workers of one attempt, and differs for any other worker."""
        same = [self.shape, self.learning_rate, self.batch_size, self.epochs, self.warmup_steps]
        same += [self.accumulation_steps, self.mixed_precision, self.momentum, self.weight_decay, self.attempt]
        same.append(self.resume_from is not None)
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def settings(environ: Environ) -> TrainerSettings:
    unknown = sorted(name for name in environ if name.startswith("PARAM_") and name not in PARAMS)
    if unknown:
        raise InvalidTrainerSetting(
            f"{unknown[0]} is not a parameter of the reference trainer, which knows {', '.join(PARAMS)}"
        )
    optimizer = choice(environ, "OPTIMIZER", "adam", tuple(LEARNING_RATES))
    return TrainerSettings(
        model=choice(environ, "MODEL", "mlp", MODELS, otherwise=OWN_PROGRAM),
        dataset=choice(environ, "DATASET", "digits", DATASETS, otherwise=OWN_PROGRAM),
        learning_rate=number(environ, "LEARNING_RATE", LEARNING_RATES[optimizer], above=0),
        batch_size=integer(environ, "BATCH_SIZE", 32, least=1),
        epochs=integer(environ, "EPOCHS", 20, least=1),
        optimizer=optimizer,
        warmup_steps=integer(environ, "WARMUP_STEPS", 0),
        accumulation_steps=integer(environ, "GRADIENT_ACCUMULATION_STEPS", 1, least=1),
        mixed_precision=flag(environ, "MIXED_PRECISION"),
        seed=integer(environ, "PARAM_SEED", 0),
        hidden=integer(environ, "PARAM_HIDDEN", 128, least=1, most=65536),
        channels=integer(environ, "PARAM_CHANNELS", 8, least=1, most=1024),
        samples=integer(environ, "PARAM_SAMPLES", 2000, least=10, most=1_000_000),
        momentum=number(environ, "PARAM_MOMENTUM", 0.9, below=1),
        weight_decay=number(environ, "PARAM_WEIGHT_DECAY", 0.01),
        attempt=environ.get("HOLDFAST_ATTEMPT", ""),
        join_timeout_s=number(environ, "PARAM_JOIN_TIMEOUT", 300, above=0, below=86_400),
        data_dir=path(environ, "DATA_DIR") or Path("/data"),
        checkpoint_dir=path(environ, "CHECKPOINT_DIR"),
        checkpoint_frequency=integer(environ, "CHECKPOINT_FREQUENCY", 1, least=1),
        checkpoint_interval_s=number(environ, "CHECKPOINT_INTERVAL_SECONDS", 0) or None,
        resume_from=path(environ, "RESUME_FROM"),
        progress_file=path(environ, "PROGRESS_FILE"),
        notice_file=path(environ, "HOLDFAST_NOTICE_FILE"),
        termination_log=path(environ, "TERMINATION_LOG") or path(environ, "HOLDFAST_TERMINATION_LOG"),
    )


def with_config_file(environ: Environ) -> dict[str, str]:
    """The environment, plus the settings that only CONFIG_FILE has.

    A missing file is no error: the operator sets the same values in the environment.
    """
    file = path(environ, "CONFIG_FILE")
    if file is None or not file.is_file():
        return dict(environ)
    try:
        written = _variables(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidTrainerSetting(f"CONFIG_FILE {file} is not the configuration of a job ({error})") from error
    return written | {name: value for name, value in environ.items() if value or name not in written}


def _variables(config: Mapping[str, object]) -> dict[str, str]:
    """learningRate → LEARNING_RATE, and additionalParams with the prefix PARAM_."""
    found = {name: config[name] for name in ("model", "dataset") if name in config}
    hyperparameters = config.get("hyperparameters", {})
    if not isinstance(hyperparameters, dict):
        raise TypeError("hyperparameters is not an object")
    found |= hyperparameters
    additional = found.pop("additionalParams", {})
    if not isinstance(additional, dict):
        raise TypeError("additionalParams is not an object")
    plain = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): _text(value) for name, value in found.items()}
    return plain | {f"PARAM_{re.sub('[^A-Z0-9_]', '_', n.upper())}": _text(value) for n, value in additional.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# The rank of this worker and the number of workers, from the variables of the job's framework.

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


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
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
    return _from_address("JAX_COORDINATOR_ADDRESS", environ["JAX_COORDINATOR_ADDRESS"], rank, size)


def _tensorflow(text: str) -> RankInfo:
    try:
        config = json.loads(text)
        kind, rank = str(config["task"]["type"]), int(config["task"]["index"])
        workers = [str(address) for address in config["cluster"]["worker"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTrainerSetting(
            'TF_CONFIG is not {"cluster": {"worker": […]}, "task": {"type": …, "index": …}}'
        ) from error
    if kind != "worker" or not 0 <= rank < len(workers):
        raise InvalidTrainerSetting(
            f"TF_CONFIG gives this process the task {kind} {rank}: there are {len(workers)} workers"
        )
    return _from_address("TF_CONFIG's first worker", workers[0], rank, len(workers))


def _required(environ: Mapping[str, str], names: tuple[str, ...]) -> Mapping[str, str]:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        given = next(name for name in names if environ.get(name))
        raise InvalidTrainerSetting(
            f"{given} is set and {', '.join(missing)} not: set all of {', '.join(names)}, or none"
        )
    return environ


def _from_address(source: str, address: str, rank: int, size: int) -> RankInfo:
    if size == 1:
        return RankInfo()
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidTrainerSetting(f"{source} is {address!r}: write host:port")
    return RankInfo(rank=rank, size=size, host=host.strip("[]"), port=int(port))
