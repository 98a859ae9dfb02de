"""Every field of podTemplate: this is written, exactly that changes in the objects."""

import pytest

from tests.trainingjob.objects.family import changed
from tests.trainingjob.objects.paths import JSON, POD, TEMPLATE, TRAINER, removed

TEMPLATES: list[tuple[str, JSON, JSON]] = [
    (
        "podTemplate.volumes",
        {"volumes": [{"name": "data", "nfs": {"server": "filer", "path": "/data"}}]},
        {
            f"{POD}.volumes[data].name": "data",
            f"{POD}.volumes[data].nfs.server": "filer",
            f"{POD}.volumes[data].nfs.path": "/data",
        },
    ),
    (
        "podTemplate.volumeMounts",
        {"volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]},
        {
            f"{TRAINER}.volumeMounts[/data].name": "data",
            f"{TRAINER}.volumeMounts[/data].mountPath": "/data",
            f"{TRAINER}.volumeMounts[/data].readOnly": True,
        },
    ),
    (
        "podTemplate.imagePullSecrets",
        {"imagePullSecrets": [{"name": "registry"}]},
        {f"{POD}.imagePullSecrets[registry].name": "registry"},
    ),
    ("podTemplate.imagePullPolicy", {"imagePullPolicy": "Always"}, {f"{TRAINER}.imagePullPolicy": "Always"}),
    (
        "podTemplate.serviceAccountName",
        {"serviceAccountName": "trainer"},
        {
            f"{POD}.serviceAccountName": "trainer",
            **removed(
                *(
                    f"ServiceAccount bert {path}"
                    for path in (
                        "apiVersion",
                        "kind",
                        "automountServiceAccountToken",
                        "metadata.name",
                        "metadata.namespace",
                        *(
                            f"metadata.labels.{label}"
                            for label in (
                                "training-job",
                                "trainingjob",
                                "holdfast.dev/attempt",
                                "app.kubernetes.io/managed-by",
                            )
                        ),
                        *(
                            f"metadata.ownerReferences[bert].{field}"
                            for field in ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
                        ),
                    )
                )
            ),
        },
    ),
    ("podTemplate.annotations", {"annotations": {"note": "x"}}, {f"{TEMPLATE}.metadata.annotations.note": "x"}),
    ("podTemplate.labels", {"labels": {"team": "vision"}}, {f"{TEMPLATE}.metadata.labels.team": "vision"}),
    ("podTemplate.runtimeClassName", {"runtimeClassName": "nvidia"}, {f"{POD}.runtimeClassName": "nvidia"}),
    (
        "podTemplate.hostNetwork",
        {"hostNetwork": True},
        {f"{POD}.hostNetwork": True, f"{POD}.dnsPolicy": "ClusterFirstWithHostNet"},
    ),
    (
        "podTemplate.topologySpreadConstraints",
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ]
        },
        {
            f"{POD}.topologySpreadConstraints[0].maxSkew": 1,
            f"{POD}.topologySpreadConstraints[0].topologyKey": "zone",
            f"{POD}.topologySpreadConstraints[0].whenUnsatisfiable": "ScheduleAnyway",
        },
    ),
    ("podTemplate.securityContext", {"securityContext": {"runAsUser": 7}}, {f"{POD}.securityContext.runAsUser": 7}),
    (
        "podTemplate.terminationGracePeriodSeconds",
        {"terminationGracePeriodSeconds": 0},
        {f"{POD}.terminationGracePeriodSeconds": 0},
    ),
]

NO_SIDECAR: JSON = {"monitoring": {"enabled": False}}


@pytest.mark.parametrize(("field", "written", "expected"), TEMPLATES, ids=[case[0] for case in TEMPLATES])
def test_a_field_of_the_template_changes_just_what_it_is_for(field: str, written: JSON, expected: JSON) -> None:
    assert changed({"podTemplate": written}, since=NO_SIDECAR) == expected
