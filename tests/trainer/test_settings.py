"""What to train, from the environment and the job's file."""

import json
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.settings import (
    DATASETS,
    LEARNING_RATES,
    MODELS,
    PARAMS,
    InvalidTrainerSetting,
    settings,
    with_config_file,
)


def test_an_empty_environment_trains_the_mlp_on_the_digits() -> None:
    chosen = settings({})
    assert (chosen.model, chosen.dataset, chosen.optimizer, chosen.epochs) == ("mlp", "digits", "adam", 20)
    assert chosen.checkpoint_dir is None
    assert chosen.resume_from is None
    assert not chosen.mixed_precision


def test_every_variable_of_the_operator_is_read() -> None:
    chosen = settings(
        {
            "MODEL": "cnn",
            "DATASET": "mnist",
            "LEARNING_RATE": "5e-4",
            "BATCH_SIZE": "64",
            "EPOCHS": "7",
            "OPTIMIZER": "adamw",
            "WARMUP_STEPS": "100",
            "GRADIENT_ACCUMULATION_STEPS": "4",
            "MIXED_PRECISION": "true",
            "PARAM_SEED": "9",
            "PARAM_HIDDEN": "32",
            "PARAM_CHANNELS": "4",
            "PARAM_SAMPLES": "500",
            "PARAM_MOMENTUM": "0",
            "PARAM_WEIGHT_DECAY": "0.1",
            "PARAM_JOIN_TIMEOUT": "30",
            "DATA_DIR": "/mnt/mnist",
            "CHECKPOINT_DIR": "/checkpoints",
            "CHECKPOINT_FREQUENCY": "2",
            "CHECKPOINT_INTERVAL_SECONDS": "1.5",
            "RESUME_FROM": "/checkpoints/checkpoint-epoch-3",
            "PROGRESS_FILE": "/run/progress",
            "HOLDFAST_NOTICE_FILE": "/run/notice",
            "TERMINATION_LOG": "/run/last",
        }
    )
    assert (chosen.checkpoint_interval_s, chosen.notice_file) == (1.5, Path("/run/notice"))
    assert (chosen.model, chosen.dataset, chosen.learning_rate, chosen.batch_size) == ("cnn", "mnist", 5e-4, 64)
    assert (chosen.epochs, chosen.optimizer, chosen.warmup_steps, chosen.accumulation_steps) == (7, "adamw", 100, 4)
    assert chosen.mixed_precision
    assert (chosen.seed, chosen.hidden, chosen.channels, chosen.samples) == (9, 32, 4, 500)
    assert (chosen.momentum, chosen.weight_decay, chosen.join_timeout_s) == (0, 0.1, 30)
    assert chosen.data_dir == Path("/mnt/mnist")
    assert (chosen.checkpoint_dir, chosen.checkpoint_frequency) == (Path("/checkpoints"), 2)
    assert chosen.resume_from == Path("/checkpoints/checkpoint-epoch-3")
    assert (chosen.progress_file, chosen.termination_log) == (Path("/run/progress"), Path("/run/last"))


@pytest.mark.parametrize("optimizer", LEARNING_RATES)
def test_each_optimizer_has_a_learning_rate_of_its_own(optimizer: str) -> None:
    assert settings({"OPTIMIZER": optimizer}).learning_rate == LEARNING_RATES[optimizer]


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert settings({"EPOCHS": "", "MODEL": "", "RESUME_FROM": "", "LEARNING_RATE": ""}) == settings({})


@pytest.mark.parametrize(("name", "known"), [("MODEL", MODELS), ("DATASET", DATASETS)])
def test_an_unknown_model_or_data_set_is_refused_with_those_that_are_known(name: str, known: tuple[str, ...]) -> None:
    with pytest.raises(
        InvalidTrainerSetting, match=f"{name} is 'resnet50': .* knows {', '.join(known)}; .* image and a command"
    ):
        settings({name: "resnet50"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EPOCHS", "abc"),
        ("EPOCHS", "0"),
        ("EPOCHS", "-1"),
        ("EPOCHS", "1.5"),
        ("EPOCHS", "1_000"),
        ("EPOCHS", "٣"),
        ("EPOCHS", "9" * 5000),
        ("BATCH_SIZE", "0"),
        ("LEARNING_RATE", "-1"),
        ("LEARNING_RATE", "0"),
        ("LEARNING_RATE", "nan"),
        ("LEARNING_RATE", "inf"),
        ("LEARNING_RATE", "fast"),
        ("OPTIMIZER", "lion"),
        ("WARMUP_STEPS", "-5"),
        ("GRADIENT_ACCUMULATION_STEPS", "0"),
        ("MIXED_PRECISION", "fp16"),
        ("CHECKPOINT_FREQUENCY", "0"),
        ("PARAM_SEED", "-1"),
        ("PARAM_HIDDEN", "0"),
        ("PARAM_HIDDEN", "1000000"),
        ("PARAM_SAMPLES", "9"),
        ("PARAM_MOMENTUM", "1"),
        ("PARAM_WEIGHT_DECAY", "-0.1"),
        ("PARAM_JOIN_TIMEOUT", "0"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_to_write(name: str, value: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match=rf"^{name} is .*: (write a |the reference trainer knows )"):
        settings({name: value})


def test_an_unknown_parameter_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidTrainerSetting, match=f"PARAM_HIDEN is not .*{PARAMS[0]}"):
        settings({"PARAM_HIDEN": "3"})


@hypothesis.settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_no_text_for_a_number_brings_anything_but_a_number_or_a_refusal(text: str) -> None:
    try:
        chosen = settings({"EPOCHS": text, "LEARNING_RATE": text})
    except InvalidTrainerSetting:
        return
    assert chosen.epochs >= 1
    assert chosen.learning_rate > 0


def test_the_digest_differs_for_other_settings_and_attempts_and_ignores_paths() -> None:
    here = settings({"PROGRESS_FILE": "/a", "CHECKPOINT_DIR": "/b", "HOLDFAST_ATTEMPT": "1"})
    assert here.digest == settings({"PROGRESS_FILE": "/c", "HOLDFAST_ATTEMPT": "1"}).digest
    assert here.digest != settings({"HOLDFAST_ATTEMPT": "2"}).digest
    assert here.digest != settings({"HOLDFAST_ATTEMPT": "1", "BATCH_SIZE": "33"}).digest
    assert here.digest != settings({"HOLDFAST_ATTEMPT": "1", "RESUME_FROM": "/b/checkpoint-epoch-1"}).digest


CONFIG = {
    "name": "digits",
    "model": "cnn",
    "dataset": "synthetic",
    "hyperparameters": {"learningRate": 0.1, "mixedPrecision": True, "additionalParams": {"seed": "4"}},
    "networking": {"backend": "gloo"},
}


def test_the_configuration_file_says_what_the_environment_does_not(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    chosen = settings(with_config_file({"CONFIG_FILE": str(file), "MODEL": "linear"}))
    assert (chosen.model, chosen.dataset, chosen.learning_rate, chosen.seed) == ("linear", "synthetic", 0.1, 4)
    assert chosen.mixed_precision


def test_a_configuration_file_that_is_not_there_is_no_error() -> None:
    environ = {"CONFIG_FILE": "/nowhere/config.json", "EPOCHS": "3"}
    assert with_config_file(environ) == environ


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"hyperparameters": 3}', '{"hyperparameters": {"additionalParams": []}}', "\x00\xff"]
)
def test_a_broken_configuration_file_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidTrainerSetting, match=r"config\.json is not the configuration of a job"):
        with_config_file({"CONFIG_FILE": str(file)})
