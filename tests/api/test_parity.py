"""The real API server, the newest and the oldest that we support, says what we say."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.kinds import KINDS
from holdfast.api.manifests import documents
from holdfast.api.schema.validation import validate_object
from holdfast.cli.crds import manifests
from tests.api.cases import CASES, CHANGES, STATUSES, Case, Change, Report
from tests.api.cases.objects import JSON, training_job
from tests.control_plane.api import Refused, Session
from tests.control_plane.server import ControlPlane

MERGE = "application/merge-patch+json"
PLURALS = {kind.kind: kind.plural for kind in KINDS}


@pytest.fixture(scope="module", params=["control_plane", pytest.param("old_control_plane", marks=pytest.mark.in_part)])
def plane(request: pytest.FixtureRequest) -> ControlPlane:
    """A control plane that our kinds are installed on, as a user would do it."""
    plane: ControlPlane = request.getfixturevalue(request.param)
    plane.kubectl("apply", "--server-side", "-f", "-", input="---\n".join(manifests().values()))
    names = [f"crd/{kind}" for kind in KINDS]
    plane.kubectl("wait", "--for=condition=Established", "--timeout=100s", *names)
    return plane


@pytest.fixture(scope="module")
async def server(plane: ControlPlane) -> AsyncIterator[Session]:
    async with plane.api.session() as session:
        yield session


@pytest.fixture(scope="module")
async def home(plane: ControlPlane) -> AsyncIterator[str]:
    """A namespace for all objects of this module."""
    async with plane.namespace() as name:
        yield name


def _path(document: JSON, namespace: str, name: str = "") -> str:
    collection = f"/apis/{document['apiVersion']}/namespaces/{namespace}/{PLURALS[document['kind']]}"
    return f"{collection}/{name}" if name else collection


@pytest.mark.every_engine
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
async def test_the_server_judges_an_object_as_we_do(server: Session, home: str, case: Case) -> None:
    create = server.request("POST", _path(case.document, home), case.document, dryRun="All", fieldValidation="Strict")
    if case.field:
        with pytest.raises(Refused) as refusal:
            await create
        _blames(refusal.value, case.field, case.says)
    else:
        stored = await create
        assert stored["spec"] == validate_object(case.document)["spec"]


@pytest.mark.every_engine
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.title)
async def test_the_server_judges_a_change_as_we_do(server: Session, home: str, change: Change) -> None:
    document = {**change.document, "metadata": {"generateName": "changing-"}}
    stored = await server.request("POST", _path(document, home), document)
    path = _path(document, home, stored["metadata"]["name"])
    await server.request("PATCH", f"{path}/status", {"status": change.status}, content_type=MERGE)
    update = server.request("PATCH", path, change.patch, content_type=MERGE, dryRun="All", fieldValidation="Strict")
    if change.field:
        with pytest.raises(Refused) as refusal:
            await update
        _blames(refusal.value, change.field, change.says)
    else:
        await update


@pytest.mark.every_engine
@pytest.mark.parametrize("report", STATUSES, ids=lambda report: report.title)
async def test_the_server_judges_a_status_as_we_do(server: Session, home: str, report: Report) -> None:
    document = {**training_job(), "metadata": {"generateName": "reporting-"}}
    stored = await server.request("POST", _path(document, home), document)
    path = _path(document, home, f"{stored['metadata']['name']}/status")
    update = server.request(
        "PATCH", path, {"status": report.status}, content_type=MERGE, dryRun="All", fieldValidation="Strict"
    )
    if report.field:
        with pytest.raises(Refused) as refusal:
            await update
        _blames(refusal.value, report.field, "")
    else:
        assert (await update)["status"] == report.status


def _blames(refusal: Refused, field: str, says: str) -> None:
    text = str(refusal)
    assert f"{field}: " in text or f'unknown field "{field}"' in text, text
    assert says in text, text


def test_kubectl_applies_every_manifest_that_we_promise(plane: ControlPlane, home: str, manifest: Path) -> None:
    objects = list(documents(manifest.read_text()))
    namespace = objects[0]["metadata"].get("namespace", home)
    plane.kubectl(
        "apply", "--server-side", "-f", "-", input=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}"
    )
    text = plane.kubectl("apply", "-f", str(manifest), "-n", namespace, "--dry-run=server", "-o", "json")
    applied = json.loads(text)
    items = applied["items"] if applied["kind"] == "List" else [applied]
    assert [each["spec"] for each in items] == [validate_object(each)["spec"] for each in objects]


def test_kubectl_reads_values_as_we_do(plane: ControlPlane, home: str) -> None:
    scalars = ["5e-05", "1E3", ".5", "017", "0o17", "0x1F", "1_000", "yes", "No", "on", "y", "N", "~", "12:30", "08"]
    scalars += ["2026-01-01", "1.2.3", "'5'", "!!str 5", "1.", "+7", "0b11", "32Gi", "1e"]
    values = "".join(f"            v{n}: {scalar}\n" for n, scalar in enumerate(scalars))
    text = f"""
apiVersion: training.training.dcnlab.com/v1alpha1
kind: SpotInstanceJob
metadata: {{name: values}}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          containers:
          - name: a
            1: one
            y: yes
{values}"""
    printed = plane.kubectl(
        "create", "--dry-run=client", "--validate=false", "-o", "json", "-n", home, "-f", "-", input=text
    )
    (ours,) = documents(text)
    assert json.loads(printed)["spec"] == ours["spec"]


@pytest.mark.every_engine
def test_kubectl_shows_the_columns_that_users_know(plane: ControlPlane, home: str) -> None:
    job = (
        "apiVersion: ml.example.com/v1\nkind: TrainingJob\nmetadata: {name: seen}\n"
        "spec: {model: m, dataset: d, numWorkers: 3}"
    )
    plane.kubectl("create", "-n", home, "-f", "-", input=job)
    status = {"status": {"state": "Running", "progress": "45%", "currentEpoch": 2}}
    plane.kubectl("patch", "tj", "seen", "-n", home, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    head, row = plane.kubectl("get", "tj", "seen", "-n", home).splitlines()
    assert head.split() == ["NAME", "STATE", "PROGRESS", "EPOCH", "AGE"]
    assert row.split()[:4] == ["seen", "Running", "45%", "2"]
    assert "trainingjob.ml.example.com/seen" in plane.kubectl("get", "holdfast", "-n", home, "-o", "name")


def test_kubectl_scales_a_training_job(plane: ControlPlane, home: str) -> None:
    job = (
        "apiVersion: ml.example.com/v1\nkind: TrainingJob\nmetadata: {name: scaled}\n"
        "spec: {model: m, dataset: d, numWorkers: 3}"
    )
    plane.kubectl("create", "-n", home, "-f", "-", input=job)
    plane.kubectl("scale", "tj/scaled", "--replicas=5", "-n", home)
    assert plane.kubectl("get", "tj", "scaled", "-n", home, "-o", "jsonpath={.spec.numWorkers}") == "5"


def test_kubectl_explains_a_field(plane: ControlPlane) -> None:
    text = " ".join(plane.kubectl("explain", "trainingjob.spec.checkpoint").split())
    assert "How the training is saved" in text
    assert "How many of the newest checkpoints are kept, beside the best; 3 by default." in text
