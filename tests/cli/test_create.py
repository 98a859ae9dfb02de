"""create, and what apply adds on one machine: namespaces, ConfigMaps and Secrets that manifests name."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.meta import Key
from holdfast.cluster.resources import NAMESPACES, SPOT_INSTANCE_JOBS
from tests.cli.lab import CommandLab, holdfast

ROOT = Path(__file__).parents[2]
BYTES = bytes(range(256))
JOB: dict[str, Any] = {
    "apiVersion": "ml.example.com/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "own"},
    "spec": {"model": "own", "dataset": "own", "numWorkers": 1, "gpusPerWorker": 0, "image": "example.com/own:1"},
}


def manifest(**spec: object) -> str:
    return yaml.safe_dump({**JOB, "spec": {**JOB["spec"], **spec}})


async def test_a_secret_is_created_from_literals_and_files(lab: CommandLab, tmp_path: Path) -> None:
    (tmp_path / "key.bin").write_bytes(BYTES)
    made = await lab.good(
        "create", "secret", "generic", "keys", "--from-literal=a=b=c", "--from-literal=empty=",
        f"--from-file={tmp_path}/key.bin", f"--from-file=other={tmp_path}/key.bin", "--type=example.com/keys",
    )  # fmt: skip
    assert made == "secret/keys created\n"
    secret = json.loads(await lab.good("get", "secret", "keys", "-o", "json"))
    assert secret["type"] == "example.com/keys"
    values = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert values == {"a": b"b=c", "empty": b"", "key.bin": BYTES, "other": BYTES}
    assert "already exists" in await lab.refused("create", "secret", "generic", "keys")


async def test_a_config_map_is_created_from_a_folder(lab: CommandLab, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    (folder / "inner").mkdir(parents=True)
    (folder / "train.py").write_text("print('ü')\n")
    (folder / "weights").write_bytes(BYTES)
    (folder / "no key!").touch()
    made = await lab.good("create", "configmap", "scripts", f"--from-file={folder}", "--from-literal=level=low")
    assert made == "configmap/scripts created\n"
    scripts = json.loads(await lab.good("get", "cm", "scripts", "-o", "json"))
    assert scripts["data"] == {"train.py": "print('ü')\n", "level": "low"}
    assert base64.b64decode(scripts["binaryData"]["weights"]) == BYTES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["configmap", "a", "--from-literal=secret-value"], "--from-literal number 1 is not KEY=VALUE"),
        (["configmap", "a", "--from-literal=k=1", "--from-literal=k=2"], "the key k is given twice"),
        (["secret", "generic", "a", "--from-file=/nonexistent/x"], "/nonexistent/x can't be read: No such file"),
        (["secret", "generic", "a", "--from-file=key=/"], "a folder has no key of its own"),
        (["secret", "generic", "a", "--from-file==/x"], "is not [KEY=]PATH"),
    ],
)
async def test_a_value_that_can_not_be_read_is_named_without_its_content(
    embedded: CommandLab, arguments: list[str], words: str
) -> None:
    complaint = await embedded.refused("create", *arguments, code=2)
    assert words in complaint
    assert "secret-value" not in complaint


async def test_a_namespace_is_created(embedded: CommandLab) -> None:
    done = await holdfast("create", "namespace", "team-a", KUBECONFIG=str(embedded.kubeconfig))
    assert (done.code, done.out) == (0, "namespace/team-a created\n")
    assert await embedded.cluster.get(NAMESPACES, Key("", "team-a"))


async def test_a_missing_namespace_is_created_on_one_machine_alone(
    lab: CommandLab, request: pytest.FixtureRequest
) -> None:
    elsewhere = manifest(command=["true"]).replace("name: own", "name: own\n  namespace: not-there-yet")
    again = elsewhere.replace("name: own\n", "generateName: own-\n")
    run = {"KUBECONFIG": str(lab.kubeconfig)}
    done = await holdfast("apply", "-f", "-", stdin=elsewhere, **run)
    if request.node.callspec.params["lab"] == "kubernetes":
        assert (done.code, done.out) == (1, "")
        assert "create it with `holdfast create namespace not-there-yet`" in done.err
        return
    assert done.code == 0
    first, second = done.out.splitlines()
    assert first == "namespace/not-there-yet created, because it was missing"
    assert second.startswith("trainingjob.ml.example.com/own created")
    assert len((await holdfast("apply", "-f", "-", stdin=again, **run)).out.splitlines()) == 1


async def test_an_image_is_said_not_to_be_run_on_one_machine_once_with_what_is_missing(
    embedded: CommandLab, tmp_path: Path
) -> None:
    note = "its image is not run on one machine: "
    script = tmp_path / "train.py"
    (tmp_path / "beside.py").touch()
    script.write_text(
        "import json, beside, no_such_framework\nimport no_such_framework.core\nfrom . import x\n"
        "try:\n    import y\nexcept ImportError: y = 0\n"
    )
    scripts = {
        "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
        "volumeMounts": [{"name": "scripts", "mountPath": "/workspace/"}],
    }
    await embedded.good("create", "configmap", "scripts", f"--from-file={script}")
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "whole": ({"command": ["python", "-c", "pass"]}, "python runs on this machine, with Python 3."),
        "absent": ({"command": ["no-such-program"]}, "there is no no-such-program here"),
        "here": ({"command": ["python", str(script)]}, "train.py imports no_such_framework, which it does not have"),
        "mounted": (
            {"command": ["python3"], "args": ["/workspace/train.py"], "podTemplate": scripts},
            "train.py imports beside, no_such_framework, which it does not have",
        ),
    }
    for name, (spec, words) in cases.items():
        text = manifest(**spec).replace("name: own", f"name: {name}")
        done = await embedded.holdfast("apply", "-f", "-", stdin=text)
        assert done.code == 0
        (line,) = done.err.splitlines()
        assert note in line
        assert words in line
    again = await embedded.holdfast("apply", "-f", "-", stdin=text)
    assert (again.code, again.err) == (0, "")


async def test_the_program_of_a_job_template_runs_where_it_is_applied_and_is_looked_at_as_any_other(
    embedded: CommandLab,
) -> None:
    job = yaml.safe_load((ROOT / "examples/spotinstancejob.yaml").read_text())
    job["metadata"] = {"name": "spot"}
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["containers"][0] |= {"command": ["no-such-program"]}
    done = await embedded.holdfast("apply", "-f", "-", stdin=yaml.safe_dump(job))
    assert f"spot created; its command runs in {Path.cwd()}\n" in done.out
    assert "its image is not run on one machine: " in done.err
    assert "there is no no-such-program here" in done.err
    made = await embedded.cluster.get(SPOT_INSTANCE_JOBS, Key(embedded.namespace, "spot"))
    assert made.metadata.annotations["holdfast.dev/working-directory"] == str(Path.cwd())
