"""The examples of the documents, applied as they are printed: each gets the objects that its golden file names."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator
from tests.operator.user import kubectl, until_state
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjob.objects.golden import EXAMPLES, FIXTURES, NAMESPACE, golden
from tests.trainingjobs import UID

JSON = dict[str, Any]

KINDS = "configmaps,services,serviceaccounts,persistentvolumeclaims,jobs,deployments"
IMAGES = (
    f"--default-image={DEFAULTS.image}",
    f"--holdfast-image={DEFAULTS.holdfast_image}",
    f"--tensorboard-image={DEFAULTS.tensorboard_image}",
)
A100 = {"nvidia.com/gpu.product": "A100-SXM4-80GB", "node-type": "gpu-large"}


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> Iterator[ControlPlane]:
    """What the examples take for granted."""
    # Others may have made it, too, and it stays for them.
    plane.kubectl(
        "apply", "--server-side", "-f", "-", input=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}"
    )
    plane.kubectl("create", "priorityclass", "high-priority", "--value=1000")
    yield plane
    plane.kubectl("delete", "priorityclass", "high-priority")


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_gets_the_objects_of_its_golden_file_and_runs(
    prepared: ControlPlane, nodes: Nodes, start_operator: StartOperator, name: str
) -> None:
    # One for each of the eight workers that keep apart from each other.
    await nodes.add(8, gpus=8, labels=A100, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    await nodes.add(1)
    start_operator(prepared, f"--namespace={NAMESPACE}", "--no-leader-elect", *IMAGES)
    manifest = str(FIXTURES / f"manifests/{name}.yaml")
    await kubectl(prepared, "apply", "-n", NAMESPACE, "-f", manifest)
    job = json.loads(await kubectl(prepared, "get", "-n", NAMESPACE, "-f", manifest, "-o", "json"))["metadata"]
    await until_state(prepared, NAMESPACE, "Running", job["name"])
    wanted = expected(name, job["uid"])
    seen = await belongings(prepared, job["uid"])
    assert seen.keys() == wanted.keys()
    for which, body in wanted.items():
        assert list(differences(body, seen[which], which)) == []
    await kubectl(prepared, "delete", "-n", NAMESPACE, "-f", manifest)
    await eventually(partial(belongings, prepared, job["uid"]), lambda left: not left, what="all of it is deleted")


def expected(name: str, uid: str) -> dict[str, JSON]:
    """The golden file, with the uid that the server has given to the job."""
    documents: list[JSON] = list(yaml.safe_load_all(golden(name).read_text().replace(UID, uid)))
    return {which_of(body): body for body in documents}


async def belongings(plane: ControlPlane, uid: str) -> dict[str, JSON]:
    """Everything that is the job's own."""
    listing = json.loads(await kubectl(plane, "get", KINDS, "-n", NAMESPACE, "-o", "json"))
    owned = (body for body in listing["items"] if any(owner["uid"] == uid for owner in owners(body)))
    return {which_of(body): body for body in owned}


def owners(body: JSON) -> list[JSON]:
    found: list[JSON] = body["metadata"].get("ownerReferences", [])
    return found


def which_of(body: JSON) -> str:
    return f"{body['kind']} {body['metadata']['name']}"


def differences(wanted: Any, seen: Any, where: str) -> Iterator[str]:
    """What is not as it is wanted; the server may add fields to an object, and nothing to a list."""
    match wanted, seen:
        case dict(), dict():
            for field, value in wanted.items():
                yield from differences(value, seen.get(field), f"{where}.{field}")
        case list(), list() if len(wanted) == len(seen):
            for number, (one, other) in enumerate(zip(wanted, seen, strict=True)):
                yield from differences(one, other, f"{where}[{number}]")
        case int(), str() if str(wanted) == seen:  # an amount, which the server writes as text
            return
        case _ if wanted != seen:
            yield f"{where}: {seen!r} instead of {wanted!r}"


@pytest.mark.parametrize(
    ("wanted", "seen", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 1}, {"a": 2}, ["x.a: 2 instead of 1"]),
        ({"a": {}}, {}, ["x.a: None instead of {}"]),
        ([1], [1, 2], ["x: [1, 2] instead of [1]"]),
        ([{"a": 1}], [{"a": "1"}], []),
        ({"a": "1"}, {"a": 1}, ["x.a: 1 instead of '1'"]),
    ],
)
def test_only_what_is_wanted_has_to_be_there_and_lists_are_whole(wanted: Any, seen: Any, found: list[str]) -> None:
    assert list(differences(wanted, seen, "x")) == found
