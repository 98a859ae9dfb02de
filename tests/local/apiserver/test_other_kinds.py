"""Services, ConfigMaps, Secrets, claims, events, leases, nodes, namespaces: what each has of its own."""

from base64 import b64encode
from ipaddress import IPv4Address

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Resource
from holdfast.local.apiserver.builtin.others import ADDRESSES
from holdfast.local.apiserver.server import EmbeddedCluster
from tests.contract.kinds import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    SERVICES,
    Document,
    config_map,
    key_of,
)

from .bodies import CLAIMS, EVENTS, LEASES, SECRETS, service

ONE = Key("default", "one")


def text(value: str) -> str:
    return b64encode(value.encode()).decode()


async def test_every_service_gets_an_address_of_its_own(cluster: EmbeddedCluster) -> None:
    made = [await cluster.create(SERVICES, service(f"s{number}"), namespace="default") for number in range(50)]
    addresses = {each.spec["clusterIP"] for each in made}
    assert len(addresses) == 50
    assert all(IPv4Address(address) in ADDRESSES for address in addresses)


async def test_a_service_keeps_its_address(cluster: EmbeddedCluster) -> None:
    one = await cluster.create(SERVICES, service(), namespace="default")
    replaced = await cluster.replace(SERVICES, ONE, service(ports=[{"port": 81, "targetPort": "http"}]))
    assert replaced.spec["clusterIP"] == one.spec["clusterIP"]
    assert replaced.spec["ports"] == [{"port": 81, "targetPort": "http", "protocol": "TCP"}]
    with pytest.raises(Invalid, match="field is immutable"):
        await cluster.patch(SERVICES, ONE, {"spec": {"clusterIP": "10.96.0.1"}})


async def test_a_headless_service_has_no_address_and_needs_no_ports(cluster: EmbeddedCluster) -> None:
    one = await cluster.create(SERVICES, service(clusterIP="None", ports=[]), namespace="default")
    assert (one.spec["clusterIP"], one.spec["clusterIPs"]) == ("None", ["None"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (service(ports=[]), "spec.ports"),
        (service(ports=[{"port": 1}, {"port": 2, "name": "b"}]), "spec.ports[0].name"),
        (service(ports=[{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]), "spec.ports[1].name"),
        (service(ports=[{"port": 70000}]), "spec.ports[0].port"),
        (service(ports=[{"port": 1, "protocol": "HTTP"}]), "spec.ports[0].protocol"),
        (service("1st"), "metadata.name"),
        (service(type="ExternalName"), "spec.externalName"),
        (service(type="ExternalName", externalName="not a name"), "spec.externalName"),
        (service(type="ExternalName", externalName="a.b", clusterIP="None"), "spec.clusterIPs[0]"),
    ],
)
async def test_a_service_that_makes_no_sense_is_refused_with_its_path(
    cluster: EmbeddedCluster, body: JSON, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(SERVICES, body, namespace="default")
    assert field in {cause.field for cause in refused.value.causes}


@pytest.mark.parametrize("key", ["..", "../up", "a/b", ".", "", "a b", "..data", "k" * 254])
@pytest.mark.parametrize("kind", [CONFIG_MAPS, SECRETS])
async def test_a_key_that_leads_out_of_its_folder_never_gets_in(
    cluster: EmbeddedCluster, kind: Resource[Document], key: str
) -> None:
    with pytest.raises(Invalid, match="a valid config key"):
        await cluster.create(kind, config_map("one", data={key: text("v")}), namespace="default")


@pytest.mark.parametrize("key", ["a", ".hidden", "a..b", "A-b_c.d", "k" * 253])
async def test_a_key_that_can_be_a_file_name_is_taken(cluster: EmbeddedCluster, key: str) -> None:
    assert (await cluster.create(CONFIG_MAPS, config_map("one", data={key: "v"}), namespace="default")).data == {
        key: "v"
    }


async def test_too_much_data_is_refused(cluster: EmbeddedCluster) -> None:
    with pytest.raises(Invalid, match="may not be more than 1048576 bytes"):
        await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "x" * (1024 * 1024 + 1)}), namespace="default")


@pytest.mark.parametrize("kind", [CONFIG_MAPS, SECRETS])
async def test_what_is_declared_immutable_stays(cluster: EmbeddedCluster, kind: Resource[Document]) -> None:
    await cluster.create(kind, {**config_map("one", data={"k": text("v")}), "immutable": True}, namespace="default")
    for patch in ({"data": {"k": text("w")}}, {"immutable": None}):
        with pytest.raises(Invalid, match="immutable"):
            await cluster.patch(kind, ONE, patch)
    labelled = await cluster.patch(kind, ONE, {"metadata": {"labels": {"a": "b"}}})
    assert labelled.data == {"k": text("v")}


async def test_plain_texts_of_a_secret_are_encoded_and_win(cluster: EmbeddedCluster) -> None:
    body = {**config_map("one", data={"a": text("old"), "b": text("kept")}), "stringData": {"a": "new"}}
    assert (await cluster.create(SECRETS, body, namespace="default")).data == {"a": text("new"), "b": text("kept")}
    assert (await cluster.patch(SECRETS, ONE, {"stringData": {"c": "more"}})).data["c"] == text("more")


async def test_a_refusal_does_not_show_the_secret(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BadRequest, match="put plain text under stringData") as refused:
        await cluster.create(SECRETS, config_map("one", data={"password": "hunter2!"}), namespace="default")
    assert "hunter2" not in str(refused.value)


async def test_the_type_of_a_secret_stays(cluster: EmbeddedCluster) -> None:
    await cluster.create(SECRETS, {"metadata": {"name": "one"}}, namespace="default")
    with pytest.raises(Invalid, match="type: "):
        await cluster.patch(SECRETS, ONE, {"type": "kubernetes.io/tls"})


def claim(**spec: object) -> JSON:
    usual = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "one"}, "spec": {**usual, **spec}}


async def test_a_claim_waits_for_its_volume_and_can_only_grow(cluster: EmbeddedCluster) -> None:
    one = await cluster.create(CLAIMS, claim(), namespace="default")
    assert (one.status, one.spec["volumeMode"]) == ({"phase": "Pending"}, "Filesystem")
    assert one.metadata.finalizers == ("kubernetes.io/pvc-protection",)
    await cluster.patch(CLAIMS, ONE, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    with pytest.raises(Invalid, match="spec is immutable after creation"):
        await cluster.patch(CLAIMS, ONE, {"spec": {"accessModes": ["ReadWriteMany"]}})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"accessModes": []}, "spec.accessModes"),
        ({"accessModes": ["Often"]}, "spec.accessModes"),
        ({"resources": {"requests": {"cpu": "1"}}}, "spec.resources[storage]"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_refused_with_its_path(
    cluster: EmbeddedCluster, spec: JSON, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(CLAIMS, claim(**spec), namespace="default")
    assert {cause.field for cause in refused.value.causes} == {field}


async def test_an_event_is_recorded_in_the_namespace_of_its_object(cluster: EmbeddedCluster) -> None:
    def event(name: str, namespace: str | None) -> JSON:
        about = {"kind": "Pod", "name": "one", **({"namespace": namespace} if namespace else {})}
        return {"metadata": {"name": name}, "involvedObject": about, "reason": "Started", "count": 1}

    await cluster.create(EVENTS, event("here", "default"), namespace="default")
    await cluster.create(EVENTS, event("node", None), namespace="default")
    with pytest.raises(Invalid, match=r"does not match event\.namespace"):
        await cluster.create(EVENTS, event("there", "kube-system"), namespace="default")
    found = await cluster.list(EVENTS, fields="involvedObject.namespace=default,reason=Started")
    assert [item.metadata.name for item in found.items] == ["here"]


async def test_a_lease_is_replaced_only_with_its_version(cluster: EmbeddedCluster) -> None:
    body = {"metadata": {"name": "one"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    one = await cluster.create(LEASES, body, namespace="default")
    with pytest.raises(Invalid, match="must be specified for an update"):
        await cluster.replace(LEASES, ONE, body)
    metadata = {"name": "one", "resourceVersion": one.metadata.resource_version}
    taken = await cluster.replace(LEASES, ONE, {"metadata": metadata, "spec": {"holderIdentity": "b"}})
    assert taken.spec == {"holderIdentity": "b"}


async def test_the_amounts_of_a_node_are_all_to_be_had_unless_it_says_otherwise(cluster: EmbeddedCluster) -> None:
    capacity = {"cpu": 8, "nvidia.com/gpu": "2"}
    node = await cluster.create(NODES, {"metadata": {"name": "one"}, "status": {"capacity": capacity}})
    assert node.status["allocatable"] == {"cpu": "8", "nvidia.com/gpu": "2"}
    patched = await cluster.patch_status(NODES, key_of(node), {"status": {"allocatable": {"cpu": "6"}}})
    assert patched.status["allocatable"] == {"cpu": "6", "nvidia.com/gpu": "2"}


async def test_a_priority_class_keeps_its_value(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "one"}, "value": 5})
    assert made.metadata.generation == 1
    with pytest.raises(Invalid, match="field is immutable"):
        await cluster.patch(PRIORITY_CLASSES, key_of(made), {"value": 6})
    with pytest.raises(Invalid, match="maximum allowed value"):
        await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "two"}, "value": 1_000_000_001})


async def test_a_new_cluster_has_the_usual_namespaces_and_priorities(cluster: EmbeddedCluster) -> None:
    namespaces = (await cluster.list(NAMESPACES)).items
    assert [each.metadata.name for each in namespaces] == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert namespaces[0].metadata.labels == {"kubernetes.io/metadata.name": "default"}
    assert (namespaces[0].spec, namespaces[0].status) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    priorities = (await cluster.list(PRIORITY_CLASSES)).items
    assert [each.metadata.name for each in priorities] == ["system-cluster-critical", "system-node-critical"]


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_the_clusters_own_namespaces_can_not_be_deleted(cluster: EmbeddedCluster, name: str) -> None:
    with pytest.raises(Forbidden, match="this namespace may not be deleted"):
        await cluster.delete(NAMESPACES, Key("", name))
    assert (await cluster.get(NAMESPACES, Key("", name))).status == {"phase": "Active"}


async def test_a_namespaces_content_can_not_be_denied(cluster: EmbeddedCluster) -> None:
    before = await cluster.get(NAMESPACES, Key("", "default"))
    patch = {"spec": {"finalizers": []}, "metadata": {"labels": {"kubernetes.io/metadata.name": "x"}}}
    assert await cluster.patch(NAMESPACES, Key("", "default"), patch) == before


async def test_a_kind_without_status_has_none_to_patch(cluster: EmbeddedCluster) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    with pytest.raises(NotFound, match="configmaps has no status"):
        await cluster.patch_status(CONFIG_MAPS, ONE, {"status": {}})
