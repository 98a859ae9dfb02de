"""A restored pod is the old template with the images by digest, and without what clung to the old pod."""

from typing import Any

import pytest

from holdfast.pods.restore.nodes import RestorableImage
from holdfast.pods.restore.template import (
    RestorePlan,
    base_image_pod,
    missing_containers,
    restored_pod,
    unrestored_containers,
)
from tests.pods.restore.restores import BASE, IMAGE, node

TOKEN = {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
DATA = {"name": "data", "mountPath": "/data"}
OLD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "counter",
        "generateName": "counter-",
        "namespace": "lab",
        "uid": "1",
        "resourceVersion": "2",
        "ownerReferences": [{"kind": "Job", "name": "counter", "uid": "3"}],
        "labels": {
            "app": "counter",
            "job-name": "counter",
            "pod-template-hash": "5f",
            "batch.kubernetes.io/controller-uid": "3",
            "app.kubernetes.io/managed-by": "holdfast",
            "app.kubernetes.io/name": "counter",
        },
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a"},
    },
    "spec": {
        "nodeName": "lost",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "nodeSelector": {"zone": "a", "kubernetes.io/hostname": "lost"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "base"}],
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "kube-api-access-x7k2p", "projected": {}}],
        "containers": [
            {
                "name": "trainer",
                "image": "r.example/base:1",
                "imagePullPolicy": "Always",
                "command": ["python"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
                "volumeMounts": [TOKEN, DATA],
            },
            {"name": "logger", "image": "logger:1"},
        ],
        "initContainers": [{"name": "first", "image": "first:1", "volumeMounts": [TOKEN]}],
        "ephemeralContainers": [{"name": "debug"}],
    },
    "status": {"phase": "Running"},
}


def plan(**more: Any) -> RestorePlan:
    whole = {"name": "again", "namespace": "lab", "images": (IMAGE,), "nodes": (node("n1"), node("n2")), **more}
    return RestorePlan(**whole)


def test_it_has_the_image_by_digest_and_all_else_of_the_template() -> None:
    pod = restored_pod(OLD, plan(secret="registry", source="lab/backup run 7"))
    trainer, logger = pod["spec"]["containers"]
    assert trainer == {
        "name": "trainer",
        "image": IMAGE.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [DATA],
    }
    assert logger == {"name": "logger", "image": "logger:1"}
    assert pod["spec"]["tolerations"] == OLD["spec"]["tolerations"]
    assert pod["spec"]["securityContext"] == {"runAsUser": 1000}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "base"}, {"name": "registry"}]


def test_nothing_that_clung_to_the_old_pod_is_left() -> None:
    pod = restored_pod(OLD, plan(source="lab/backup run 7"))
    assert set(pod) == {"apiVersion", "kind", "metadata", "spec"}
    assert pod["metadata"] == {
        "name": "again",
        "namespace": "lab",
        "labels": {"app": "counter", "app.kubernetes.io/name": "counter"},
        "annotations": {"team": "a", "holdfast.dev/restored-from": "lab/backup run 7"},
    }
    gone = {"nodeName", "priority", "preemptionPolicy", "serviceAccount", "ephemeralContainers", "status"}
    assert gone.isdisjoint(pod["spec"])
    assert pod["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
    assert pod["spec"]["initContainers"] == [{"name": "first", "image": "first:1", "volumeMounts": []}]


def test_the_old_pod_is_not_changed() -> None:
    before = repr(OLD)
    restored_pod(OLD, plan(secret="registry"))
    base_image_pod(OLD, plan())
    assert repr(OLD) == before


def test_it_goes_only_to_chosen_nodes_with_the_label() -> None:
    spec = restored_pod(OLD, plan())["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "holdfast.dev/restore": "true"}
    chosen = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1.example", "n2.example"]}
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}


def test_what_the_template_itself_asks_of_nodes_holds_in_every_alternative() -> None:
    ssd, hdd = ({"key": "disk", "operator": "In", "values": [kind]} for kind in ("ssd", "hdd"))
    terms = [{"matchExpressions": [ssd]}, {"matchExpressions": [hdd]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    old = {"spec": {**OLD["spec"], "affinity": {"nodeAffinity": required}}}
    found = restored_pod(old, plan())["spec"]["affinity"]["nodeAffinity"]
    made = found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0] for term in made] == [ssd, hdd]
    assert all(term["matchExpressions"][1]["key"] == "kubernetes.io/hostname" for term in made)


def test_nodes_that_are_kept_for_restores_are_tolerated_and_no_other_taint() -> None:
    own = OLD["spec"]["tolerations"]
    taint = {"key": "holdfast.dev/restore", "value": "only", "effect": "NoSchedule"}
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    kept = plan(nodes=(node("n1", taints=[other]), node("n2", taints=[other, taint])))
    base_image = base_image_pod(OLD, kept)
    assert base_image is not None
    for made in (restored_pod(OLD, kept), base_image):
        assert made["spec"]["tolerations"] == [*own, {"key": "holdfast.dev/restore", "operator": "Exists"}]
    elsewhere = plan(nodes=(node("n1", taints=[other]),))
    assert restored_pod(OLD, elsewhere)["spec"]["tolerations"] == own


def test_a_secret_that_the_pod_has_already_is_not_named_twice() -> None:
    assert restored_pod(OLD, plan(secret="base"))["spec"]["imagePullSecrets"] == [{"name": "base"}]


def test_the_base_image_comes_by_digest_with_the_pods_own_secrets_to_a_node_where_the_pod_fits() -> None:
    pod = base_image_pod(OLD, plan(secret="registry"))
    assert pod is not None
    (container,) = pod["spec"]["containers"]
    assert container["image"] == BASE
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "base"}]
    assert pod["spec"]["nodeSelector"]["holdfast.dev/restore"] == "true"
    assert (pod["spec"]["restartPolicy"], pod["spec"]["automountServiceAccountToken"]) == ("Never", False)
    assert "volumes" not in pod["spec"]
    assert container["securityContext"]["runAsNonRoot"], "a namespace may enforce the restricted profile"
    assert pod["metadata"] == {"name": "again-base-image", "namespace": "lab"}


def test_a_base_image_that_no_registry_has_needs_no_pod() -> None:
    image = RestorableImage(container="trainer", image=IMAGE.image, base_image="sha256:12")
    assert base_image_pod(OLD, plan(images=(image,))) is None


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {"containers": []}}])
def test_a_template_without_containers_lacks_the_saved_one(template: dict[str, Any]) -> None:
    assert missing_containers(template, [IMAGE]) == ["trainer"]


def test_containers_without_an_image_are_known_to_begin_anew() -> None:
    assert missing_containers(OLD, [IMAGE]) == []
    assert unrestored_containers(OLD, [IMAGE]) == ["logger"]
