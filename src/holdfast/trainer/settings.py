"""What to train and how, from the environment that the operator sets."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.trainer.errors import BadSetting
from holdfast.trainer.values import Environ, choice, flag, integer, number, path

MODELS = ("linear", "mlp", "cnn")
DATASETS = ("digits", "synthetic", "mnist")
# The rate that suits each optimizer, for a job that writes none.
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
class Settings:
    """One training, the same for every worker but for the paths."""

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
        """What a checkpoint must have in common with the training that resumes from it."""
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
        """The same for all workers of one attempt, and for nobody else."""
        same = [self.shape, self.learning_rate, self.batch_size, self.epochs, self.warmup_steps]
        same += [self.accumulation_steps, self.mixed_precision, self.momentum, self.weight_decay, self.attempt]
        same.append(self.resume_from is not None)
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def settings(environ: Environ) -> Settings:
    unknown = sorted(name for name in environ if name.startswith("PARAM_") and name not in PARAMS)
    if unknown:
        raise BadSetting(f"{unknown[0]} is not a parameter of the reference trainer, which knows {', '.join(PARAMS)}")
    optimizer = choice(environ, "OPTIMIZER", "adam", tuple(LEARNING_RATES))
    return Settings(
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
    """The environment, and what only CONFIG_FILE says.

    A file that is not there is no error: the operator puts the same into the environment.
    """
    file = path(environ, "CONFIG_FILE")
    if file is None or not file.is_file():
        return dict(environ)
    try:
        written = _variables(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadSetting(f"CONFIG_FILE {file} is not the configuration of a job ({error})") from error
    return written | {name: value for name, value in environ.items() if value or name not in written}


def _variables(config: Mapping[str, object]) -> dict[str, str]:
    """learningRate → LEARNING_RATE, and additionalParams with PARAM_ before them."""
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
