"""apply, get, describe and delete, on both engines."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from holdfast.api.meta import WORKING_DIRECTORY, Key
from holdfast.cli.delete import checkpoints_left
from holdfast.cli.resource_args import find_kind
from holdfast.cluster.errors import NotFound
from holdfast.runtime.events import EVENTS
from tests.cli.conftest import EmbeddedCommandLab
from tests.cli.lab import CommandLab, condition, finished, holdfast, interrupted, line_of
from tests.contract.kinds import TRAINING_JOBS

MNIST = """\
apiVersion: ml.example.com/v1
kind: TrainingJob
metadata: {name: mnist, labels: {team: vision}}
spec: {model: cnn, dataset: mnist, numWorkers: 2, gpusPerWorker: 0}
"""
SETTINGS = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: low, old: "1"}
"""
NAMED = "trainingjob.ml.example.com/mnist"


async def test_a_manifest_is_created_then_unchanged_then_configured(lab: CommandLab, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "job.yaml").write_text(MNIST)
    (folder / "settings.yml").write_text(SETTINGS)
    assert await lab.good("apply", "-f", str(folder)) == f"{NAMED} created\nconfigmap/settings created\n"
    assert await lab.good("apply", "-f", str(folder)) == f"{NAMED} unchanged\nconfigmap/settings unchanged\n"
    changed = SETTINGS.replace('level: low, old: "1"', "level: high")
    both = MNIST.replace("numWorkers: 2", "numWorkers: 3") + "---\n" + changed
    assert await lab.good("apply", "-f", "-", stdin=both) == f"{NAMED} configured\nconfigmap/settings configured\n"
    settings = json.loads(await lab.good("get", "cm", "settings", "-o", "json"))
    assert settings["data"] == {"level": "high"}


async def test_what_others_have_set_stays_when_a_manifest_is_applied_again(lab: CommandLab) -> None:
    await lab.good("apply", "-f", "-", stdin=MNIST)
    key = Key(lab.namespace, "mnist")
    await lab.cluster.patch(TRAINING_JOBS, key, {"metadata": {"labels": {"by": "another"}}})
    without_label = MNIST.replace(", labels: {team: vision}", "")
    assert await lab.good("apply", "-f", "-", stdin=without_label) == f"{NAMED} configured\n"
    assert (await lab.cluster.get(TRAINING_JOBS, key)).metadata.labels == {"by": "another"}


async def test_a_refused_manifest_is_reported_by_field_and_the_others_are_applied(lab: CommandLab) -> None:
    wrong = MNIST.replace("numWorkers: 2", "numWorkers: 300, model_: x").replace("name: mnist", "name: wrong")
    done = await lab.holdfast("apply", "-f", "-", stdin=wrong + "---\n" + MNIST)
    assert done.code == 1
    assert done.out == f"{NAMED} created\n"
    lines = done.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("holdfast: trainingjob.ml.example.com/wrong is refused: ") for line in lines)
    assert lines[0].endswith("spec.model_ is no field that holdfast knows: did you mean model?")
    assert lines[1].endswith("spec.numWorkers is 300: write at most 100")


@pytest.mark.parametrize("kind", ["ml.example.com/v1 Trainingjob", "ml.example.com/v2 TrainingJob", "a.io/v1 Zebra"])
async def test_apply_names_an_unknown_kind_as_validate_does(embedded: CommandLab, kind: str) -> None:
    version, name = kind.split()
    manifest = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: a}}"
    applied = await embedded.refused("apply", "-f", "-", code=2, stdin=manifest)
    validated = (await holdfast("validate", "-f", "-", stdin=manifest)).out
    reason = applied.partition("is refused: ")[2]
    assert reason
    assert validated.endswith(reason)


async def test_the_error_for_a_job_that_has_ended_says_to_delete_it_first(lab: CommandLab) -> None:
    await lab.good("apply", "-f", "-", stdin=MNIST)
    since = (datetime.now(UTC) - timedelta(minutes=30)).isoformat(timespec="seconds").replace("+00:00", "Z")
    await lab.say("mnist", {"state": "Failed", "completionTime": since, "conditions": [condition("Failed")]})
    again = await lab.good("apply", "-f", "-", stdin=MNIST)
    assert again == f"{NAMED} unchanged, and it has ended (Failed 30m ago): holdfast delete tj mnist first\n"
    changed = MNIST.replace("numWorkers: 2", "numWorkers: 3, command: [python, other.py]")
    refused = await lab.refused("apply", "-f", "-", stdin=changed)
    assert refused == (
        f"holdfast: {NAMED} is refused: it has ended (Failed 30m ago): holdfast delete tj mnist first, "
        "or give the manifest another name\n"
    )
    wrong = changed.replace("numWorkers: 3", "numWorkers: 300")
    assert "spec.numWorkers is 300" in await lab.refused("apply", "-f", "-", stdin=wrong)


async def test_only_on_one_machine_the_folder_of_a_command_is_noted(lab: CommandLab) -> None:
    """A folder of this machine says nothing to the nodes of a cluster."""
    command = MNIST.replace("numWorkers", "command: [python, train.py], numWorkers")
    key, here = Key(lab.namespace, "mnist"), str(Path.cwd())
    is_local = isinstance(lab, EmbeddedCommandLab)
    told = f"; its command runs in {here}" if is_local else ""
    assert await lab.good("apply", "-f", "-", stdin=command) == f"{NAMED} created{told}\n"
    noted = (await lab.cluster.get(TRAINING_JOBS, key)).metadata.annotations.get(WORKING_DIRECTORY)
    assert noted == (here if is_local else None)
    # What is noted already counts until what runs is changed.
    elsewhere = {"metadata": {"annotations": {WORKING_DIRECTORY: "/elsewhere"}}}
    await lab.cluster.patch(TRAINING_JOBS, key, elsewhere)
    for manifest, folder in ((command, "/elsewhere"), (command.replace("train.py", "b.py"), here)):
        await lab.good("apply", "-f", "-", stdin=manifest)
        noted = (await lab.cluster.get(TRAINING_JOBS, key)).metadata.annotations[WORKING_DIRECTORY]
        assert noted == (folder if is_local else "/elsewhere")
    own = command.replace("labels:", f"annotations: {{{WORKING_DIRECTORY}: /mine}}, labels:")
    assert "runs in" not in await lab.good("apply", "-f", "-", stdin=own)
    assert (await lab.cluster.get(TRAINING_JOBS, key)).metadata.annotations[WORKING_DIRECTORY] == "/mine"


async def test_a_name_that_the_server_makes_is_printed(lab: CommandLab) -> None:
    said = await lab.good("apply", "-f", "-", stdin=MNIST.replace("name: mnist", "generateName: run-"))
    (made,) = (await lab.cluster.list(TRAINING_JOBS, namespace=lab.namespace)).items
    assert made.metadata.name.startswith("run-")
    assert said == f"trainingjob.ml.example.com/{made.metadata.name} created\n"


async def test_a_table_has_the_columns_of_the_kind(lab: CommandLab) -> None:
    status = {"state": "Running", "progress": "45%", "currentEpoch": 9, "message": "all is well"}
    await lab.job("bert", status)
    await lab.job("alone")
    header, alone, bert = (await lab.good("get", "tj")).splitlines()
    assert header.split() == ["NAME", "STATE", "PROGRESS", "EPOCH", "AGE"]
    assert bert.split()[:4] == ["bert", "Running", "45%", "9"]
    assert alone.split()[0] == "alone"
    assert bert.index("Running") == header.index("STATE")
    wide = (await lab.good("get", "trainingjobs/bert", "-o", "wide", "--no-headers")).split(maxsplit=6)
    assert wide[5] == "2"
    assert wide[6] == "all is well\n"
    everywhere = (await lab.good("get", "trainingjob.ml.example.com", "-A")).splitlines()
    assert everywhere[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert [lab.namespace, "bert"] in [line.split()[:2] for line in everywhere]


async def test_a_category_shows_each_kind_with_its_name(lab: CommandLab) -> None:
    await lab.job("bert")
    await lab.cluster.create(
        TRAINING_JOBS, {**_body("picked"), "metadata": _labelled("picked")}, namespace=lab.namespace
    )
    assert (await lab.good("get", "holdfast", "-l", "pick=me", "-o", "name")) == "trainingjob.ml.example.com/picked\n"
    shown = (await lab.good("get", "all")).splitlines()
    assert [line.split()[0] for line in shown] == [
        "NAME",
        "trainingjob.ml.example.com/bert",
        "trainingjob.ml.example.com/picked",
    ]


async def test_an_object_is_shown_whole(lab: CommandLab) -> None:
    await lab.good("apply", "-f", "-", stdin=MNIST)
    whole = yaml.safe_load(await lab.good("get", "tj/mnist", "-o", "yaml"))
    assert list(whole) == ["apiVersion", "kind", "metadata", "spec"]
    assert whole["metadata"]["labels"] == {"team": "vision"}
    assert "managedFields" not in whole["metadata"]
    assert whole["metadata"]["uid"]
    assert whole["spec"]["framework"] == "pytorch"
    assert json.loads(await lab.good("get", "tj", "mnist", "-o", "json")) == whole
    assert json.loads(await lab.good("get", "tj", "-o", "json"))["items"] == [whole]
    again = await lab.good("apply", "-f", "-", stdin=yaml.safe_dump(whole))
    assert again == f"{NAMED} configured\n" or again == f"{NAMED} unchanged\n"


async def test_nothing_found_is_said_beside_the_output(lab: CommandLab) -> None:
    done = await lab.holdfast("get", "tj")
    assert done == (0, "", f"No resources found in {lab.namespace} namespace.\n")
    assert json.loads(await lab.good("get", "tj", "-o", "json"))["items"] == []
    for words in (
        ["get", "tj", "none"],
        ["describe", "tj/none"],
        ["delete", "tj/none"],
        ["wait", "tj/none", "--for=condition=A"],
    ):
        assert await lab.refused(*words) == (
            f'holdfast: trainingjobs.ml.example.com "none" not found in namespace {lab.namespace}: '
            f"`holdfast get tj -n {lab.namespace}` shows what is there\n"
        )


async def test_a_watch_shows_every_change_until_ctrl_c(lab: CommandLab) -> None:
    await lab.job("bert")
    watching = await lab.start("get", "tj", "-w")
    assert (await line_of(watching)).split()[:2] == ["NAME", "STATE"]
    assert (await line_of(watching)).split()[0] == "bert"
    await lab.say("bert", {"state": "Running"})
    assert (await line_of(watching)).split()[:2] == ["bert", "Running"]
    await lab.cluster.delete(TRAINING_JOBS, Key(lab.namespace, "bert"))
    assert (await line_of(watching)).split()[:2] == ["bert", "Running"]
    done = await interrupted(watching)
    assert done == (130, "", "")


async def test_a_description_ends_with_conditions_and_events(lab: CommandLab) -> None:
    await lab.job("bert", {"state": "Running", "conditions": [condition("Running", message="two of two\nrun")]})
    about = await lab.cluster.get(TRAINING_JOBS, Key(lab.namespace, "bert"))
    for uid, reason in ((about.metadata.uid, "Started"), ("of-an-older-bert", "Forgotten")):
        event = {
            "metadata": {"generateName": "bert."},
            "involvedObject": {"kind": "TrainingJob", "namespace": lab.namespace, "name": "bert", "uid": uid},
            "reason": reason,
            "message": "it runs",
            "type": "Normal",
            "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:01:00Z",
        }
        await lab.cluster.create(EVENTS, event, namespace=lab.namespace)
    lines = (await lab.good("describe", "tj", "bert")).splitlines()
    assert lines[0].split() == ["Name:", "bert"]
    assert lines[1].split() == ["Namespace:", lab.namespace]
    assert ["Num", "Workers:", "2"] in [line.split() for line in lines]
    conditions = lines.index("Conditions:")
    assert lines[conditions + 2].split()[:3] == ["Running", "True", "AsTold"]
    assert lines[conditions + 2].endswith("two of two run")
    assert lines[-3] == "Events:"
    assert lines[-1].split()[:2] == ["Normal", "Started"]
    assert "(x3 over " in lines[-1]


async def test_deleting_waits_until_the_object_is_gone(lab: CommandLab) -> None:
    await lab.good("apply", "-f", "-", stdin=MNIST)
    key = Key(lab.namespace, "mnist")
    await lab.cluster.patch(TRAINING_JOBS, key, {"metadata": {"finalizers": ["tests.holdfast.dev/hold"]}})
    deleting = await lab.start("delete", "tj", "mnist")
    assert await line_of(deleting) == 'trainingjob.ml.example.com "mnist" deleted\n'
    assert deleting.returncode is None
    assert (await lab.cluster.get(TRAINING_JOBS, key)).metadata.deletion_timestamp
    await lab.cluster.patch(TRAINING_JOBS, key, {"metadata": {"finalizers": None}})
    assert await finished(deleting) == (0, "", "")
    with pytest.raises(NotFound):
        await lab.cluster.get(TRAINING_JOBS, key)


async def test_deleting_a_job_says_where_its_checkpoints_stay_and_how_to_go_on_from_them(embedded: CommandLab) -> None:
    await embedded.job("mnist", {"checkpoint": {"last": "/checkpoints/attempt-1/checkpoint-epoch-7"}}, checkpoint={})
    uid = (await embedded.cluster.get(TRAINING_JOBS, Key(embedded.namespace, "mnist"))).metadata.uid
    deleted, stay, example, cleanup = (await embedded.good("delete", "tj", "mnist")).splitlines()
    assert deleted == 'trainingjob.ml.example.com "mnist" deleted'
    assert stay.startswith("The checkpoints of mnist stay in the claim mnist-checkpoints. ")
    assert yaml.safe_load(example)["checkpoint"] == {
        "resumeFrom": f"trial/mnist/{uid}/attempt-1/checkpoint-epoch-7",
        "storage": {"type": "pvc", "pvcName": "mnist-checkpoints"},
    }
    assert cleanup.endswith("holdfast delete pvc mnist-checkpoints")
    await embedded.job("again", **yaml.safe_load(example))
    await embedded.job("saved-nothing", checkpoint={})
    assert len((await embedded.good("delete", "tj", "again", "saved-nothing")).splitlines()) == 2


@pytest.mark.parametrize(
    ("storage", "place", "resume_from"),
    [
        ({"type": "pvc", "pvcName": "runs", "prefix": "p"}, "the claim runs.", "p"),
        ({"type": "nfs", "nfsServer": "n", "nfsPath": "/e"}, "n:/e.", "default/bert/u"),
        ({"type": "s3", "s3Bucket": "runs"}, "s3://runs/default/bert/u.", "s3://runs/default/bert/u"),
        ({"type": "gcs", "gcsBucket": "runs"}, "gs://runs/default/bert/u.", "gs://runs/default/bert/u"),
    ],
)
def test_checkpoints_stay_where_the_job_kept_them(storage: dict[str, str], place: str, resume_from: str) -> None:
    document = {
        "metadata": {"name": "bert", "namespace": "default", "uid": "u"},
        "spec": {"model": "a", "dataset": "b", "numWorkers": 1, "checkpoint": {"storage": storage}},
        "status": {"checkpoint": {"last": "any/attempt-0/checkpoint-epoch-1"}},
    }
    stay, example, *_ = checkpoints_left(find_kind("tj"), document)
    assert f"stay in {place}" in stay
    written = yaml.safe_load(example)["checkpoint"]
    assert written["resumeFrom"] == f"{resume_from}/attempt-0/checkpoint-epoch-1"
    assert written["storage"] == {name: value for name, value in storage.items() if name != "prefix"}


async def test_what_manifests_name_is_deleted(lab: CommandLab) -> None:
    both = MNIST + "---\n" + SETTINGS
    await lab.good("apply", "-f", "-", stdin=both)
    gone = await lab.good("delete", "--no-wait", "-f", "-", stdin=both)
    assert gone == 'trainingjob.ml.example.com "mnist" deleted\nconfigmap "settings" deleted\n'
    assert "not found" in await lab.refused("delete", "cm/settings")
    assert await lab.good("delete", "cm/settings", "--ignore-not-found") == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["get", "trainingjbos"], "did you mean trainingjobs"),
        (["get", "zebras"], "there are trainingjobs"),
        (["get"], "say which kind"),
        (["get", "tj", "a", "-A"], "leave out the name"),
        (["get", "tj,pods", "-w"], "one kind"),
        (["delete", "tj"], "tj/NAME"),
        (["delete"], "-f FILE"),
        (["apply", "-f", "/nowhere/job.yaml"], "/nowhere/job.yaml can't be read: No such file"),
        (["wait", "tj/a", "--for=sunshine"], "condition=NAME"),
        (["wait", "tj/a"], "--for=condition=Succeeded"),
        (["wait", "tj/a", "--for=delete", "--timeout=soon"], "30s"),
        (["logs", "svc/a"], "gpuw/NAME, sij/NAME or pod/NAME"),
    ],
)
async def test_a_misused_command_says_how_to_use_it(embedded: CommandLab, arguments: list[str], expected: str) -> None:
    assert expected in await embedded.refused(*arguments, code=2)


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ("[1, 2", "can't be read as YAML or JSON: line 1"),
        ("just words", "is no object"),
        ("", "hold no object"),
        ("apiVersion: v1\nkind: Zebra\nmetadata: {name: a}", "v1 has no kind Zebra: it has Pod"),
        ("apiVersion: v1\nkind: TrainingJob\nmetadata: {name: a}", "write apiVersion: ml.example.com/v1"),
        ("apiVersion: v1\nkind: ConfigMap", "metadata.name is missing"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: other}", "--namespace says"),
    ],
)
async def test_a_manifest_that_makes_no_sense_is_named_with_what_it_lacks(
    embedded: CommandLab, manifest: str, expected: str
) -> None:
    said = await embedded.refused("apply", "-f", "-", code=2, stdin=manifest)
    assert expected in said
    assert len(said.splitlines()) == 1


async def test_odd_manifests_are_refused_one_by_one_without_a_traceback(embedded: CommandLab) -> None:
    odd: list[dict[str, object]] = [
        {"metadata": {"name": "a", "annotations": [1]}},
        {"metadata": {"name": "a", "labels": 7}},
        {"metadata": {"name": ["a"]}},
        {"metadata": 7},
        {"metadata": {"name": "a"}, "spec": 7},
        {"metadata": {"name": "a"}, "spec": {"env": {"a": "b"}}},
        {"metadata": {"name": "a", "namespace": 7}},
        {"kind": ["TrainingJob"], "metadata": {"name": "a"}},
    ]
    head = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob"}
    done = await embedded.holdfast("apply", "-f", "-", stdin=yaml.safe_dump_all([{**head, **each} for each in odd]))
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) >= len(odd)


async def test_without_the_right_the_server_s_no_is_one_line(control_plane_stranger: Path) -> None:
    done = await holdfast("get", "pods", KUBECONFIG=str(control_plane_stranger))
    assert done.code == 1
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert '"a-stranger" cannot list resource "pods"' in done.err


def _body(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"model": "cnn", "dataset": "mnist", "numWorkers": 1}}


def _labelled(name: str) -> dict[str, object]:
    return {"name": name, "labels": {"pick": "me"}}
