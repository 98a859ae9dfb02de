"""The command `holdfast validate`, as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from holdfast.api.manifests import documents
from holdfast.cli.commands import validate
from tests.api.conftest import ROOT

VALIDATE = typer.Typer()
VALIDATE.command()(validate)

GOOD = """
apiVersion: ml.example.com/v1
kind: TrainingJob
metadata: {name: bert}
spec: {model: bert, dataset: squad, numWorkers: 2, hyperparameters: {learningRate: 5e-05}}
"""
BAD = GOOD.replace("numWorkers: 2", "numWorkers: 101, networking: {backend: mpi}").replace("bert}\n", "broken}\n")


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(VALIDATE, arguments, input=stdin)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def test_a_good_manifest_is_named_and_ok(file: Path) -> None:
    file.write_text(GOOD)
    result = run("-f", str(file))
    assert result.exit_code == 0
    assert result.stdout == f"{file}: document 1: TrainingJob/bert ok\n"


def test_every_problem_has_a_line_with_file_document_object_field_and_cure(file: Path) -> None:
    file.write_text(f"{GOOD}---{BAD}")
    result = run("-f", str(file))
    good, workers, backend = result.stdout.splitlines()
    assert result.exit_code == 1
    assert good.endswith("TrainingJob/bert ok")
    assert workers == (f"{file}: document 2: TrainingJob/broken: spec.numWorkers is 101: write at most 100")
    assert backend.startswith(f'{file}: document 2: TrainingJob/broken: spec.networking.backend is "mpi": write nccl')


def test_a_message_stays_on_its_line_whatever_the_value(file: Path) -> None:
    file.write_text(GOOD.replace("model: bert", 'model: bert, image: "two\\nlines"'))
    result = run("-f", str(file))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1


def test_standard_input_is_read() -> None:
    result = run("-f", "-", stdin=GOOD)
    assert (result.exit_code, result.stdout) == (0, "standard input: document 1: TrainingJob/bert ok\n")


def test_all_manifests_of_a_folder_are_checked_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", "notes.txt"):
        (tmp_path / name).write_text(GOOD if name != "c.json" else "{}")
    result = run("-f", str(tmp_path))
    assert [Path(line.split(":")[0]).name for line in result.stdout.splitlines()] == ["a.yml", "b.yaml", "c.json"]
    assert result.exit_code == 1


def test_several_sources_are_checked_and_the_worst_counts(file: Path) -> None:
    file.write_text(BAD)
    result = run("-f", str(file), "-f", "-", "-f", str(file.with_name("absent.yaml")), stdin=GOOD)
    assert result.exit_code == 2
    assert "TrainingJob/broken" in result.stdout
    assert "TrainingJob/bert ok" in result.stdout
    assert result.stderr == f"{file.with_name('absent.yaml')}: can't be read: No such file or directory\n"


def test_the_objects_of_a_list_are_checked_one_by_one() -> None:
    items = ",\n".join(f"{{{', '.join(text.strip().splitlines())}}}" for text in (GOOD, BAD))
    result = run("-f", "-", stdin=f"apiVersion: v1\nkind: List\nitems: [{items}]")
    assert result.exit_code == 1
    assert "TrainingJob/bert ok" in result.stdout
    assert "TrainingJob/broken: spec.numWorkers" in result.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "document 1: can't be read as YAML or JSON: line 1"),
        (f"{GOOD}---\na: 1\na: 2", 'document 2: can\'t be read as YAML or JSON: line 8, column 1: the field "a"'),
        ("", "holds no object"),
        ("---\n# nothing\n", "holds no object"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
    ],
)
def test_input_that_can_not_be_read_ends_with_two(text: str | bytes, says: str) -> None:
    result = run("-f", "-", stdin=text)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_without_manifests_can_not_be_read(tmp_path: Path) -> None:
    result = run("-f", str(tmp_path))
    assert result.exit_code == 2
    assert "the folder holds no .yaml" in result.stderr


def test_a_file_with_a_byte_order_mark_is_read(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8-sig")
    assert run("-f", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: a}",
            0,
            "Service/a is not checked: holdfast checks its own kinds, and the API server this one",
        ),
        (
            GOOD.replace("ml.example.com/v1", "sagemaker.example.com/v1"),
            0,
            "sagemaker.example.com/v1 has no kind TrainingJob: write apiVersion: ml.example.com/v1",
        ),
        ("apiVersion: a.example/v1\nkind: Zebra", 0, "a.example/v1 Zebra is no kind that holdfast knows: use kubectl"),
        (GOOD.replace("com/v1", "com/v2"), 1, "apiVersion ml.example.com/v2 is not served: write ml.example.com/v1"),
        (
            "apiVersion: migration.dcnlab.com/v2\nkind: CheckpointBackup",
            1,
            "write migration.dcnlab.com/v1 or migration.dcnlab.com/v1alpha1",
        ),
        (
            GOOD.replace("kind: TrainingJob", "kind: Trainingjob"),
            1,
            "ml.example.com/v1 has no kind Trainingjob: did you mean TrainingJob?",
        ),
        (
            "apiVersion: training.training.dcnlab.com/v1alpha1\nkind: SpotVM",
            1,
            "training.training.dcnlab.com/v1alpha1 has no kind SpotVM: did you mean SpotInstanceVM?",
        ),
        (GOOD.replace("kind: TrainingJob", "kind: Pipeline"), 1, "has no kind Pipeline: it has TrainingJob"),
        (
            GOOD.replace("apiVersion: ml.example.com/v1", ""),
            1,
            "apiVersion is missing: write apiVersion: ml.example.com/v1",
        ),
        (GOOD.replace("kind: TrainingJob", "kind: 5"), 1, "kind is no text: write a kind"),
        ("- a\n- b", 1, "is no object: write apiVersion, kind, metadata and spec"),
        ("just words", 1, "is no object"),
        (GOOD.replace("{name: bert}", "bert"), 1, "metadata is text: write its fields below it: name, "),
        (
            GOOD.replace("spec: {", "spec: {numWorker: 3, "),
            1,
            "spec.numWorker is no field that holdfast knows: did you",
        ),
    ],
)
def test_the_line_says_whether_a_kind_is_nearly_or_not_at_all_ours(text: str, code: int, says: str) -> None:
    result = run("-f", "-", stdin=text)
    assert says in result.stdout
    assert result.exit_code == code
    assert len(result.stdout.splitlines()) == 1


def test_every_manifest_that_we_promise_is_ok() -> None:
    folders = (ROOT / "tests/fixtures/manifests", ROOT / "examples")
    result = run(*(word for folder in folders for word in ("-f", str(folder))))
    assert result.exit_code == 0
    files = [file for folder in folders for file in folder.glob("*.yaml")]
    assert len(result.stdout.splitlines()) == sum(len(list(documents(file.read_text()))) for file in files) > 0
    assert all(line.endswith(" ok") for line in result.stdout.splitlines())


def test_the_rule_engine_is_loaded_when_the_first_rule_is_asked() -> None:
    code = "import sys, holdfast.cli.crds; print('cel_expr_python.cel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
