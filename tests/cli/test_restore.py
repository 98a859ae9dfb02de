"""`holdfast restore`: which run, which template, which nodes; and what it says where it can't."""

import base64
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.checkpoints.images.image import BytesBlob, ImageFacts
from holdfast.checkpoints.images.reference import registry_address, tag_prefix
from holdfast.checkpoints.images.registry import RegistryClient, push_image
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, NODES, PODS, SECRETS
from holdfast.local.registry.server import serve_registry
from holdfast.pods.restore.nodes import CPU_FLAGS_ANNOTATION
from tests.checkpoints.images.registries import (
    PASSWORD,
    USER,
    RunningRegistry,
    password_auth,
    running_registry,
)
from tests.cli.lab import CommandLab

FLAGS = ("avx2", "sse2")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder, password_auth(folder)) as running:
        yield running


class Backups:
    """A backup `nightly` of the pod `counter`, and the images of its runs."""

    def __init__(self, lab: CommandLab, registry: RunningRegistry) -> None:
        self.lab = lab
        self.registry = registry
        self.repository = f"team/{secrets.token_hex(4)}"  # uids of a cluster in memory are always the same

    @property
    def where(self) -> str:
        return f"{self.registry.address.host}/{self.repository}"

    async def create(self, *, docker_config: bool = True, **spec: Any) -> CheckpointBackup:
        await self.lab.cluster.create(SECRETS, self._secret(docker_config), namespace=self.lab.namespace)
        body = {
            "metadata": {"name": "nightly"},
            "spec": {
                "schedule": "@daily",
                "podRef": {"name": "counter"},
                "registry": {
                    "url": self.registry.address.host,
                    "repository": self.repository,
                    "secretRef": {"name": "registry"},
                },
                **spec,
            },
        }
        return await self.lab.cluster.create(CHECKPOINT_BACKUPS, body, namespace=self.lab.namespace)

    def _secret(self, docker_config: bool) -> dict[str, Any]:
        login = {"username": USER, "password": PASSWORD}
        auths = json.dumps({"auths": {self.registry.address.host: login}})
        content = {**({".dockerconfigjson": auths} if docker_config else login), "ca.crt": self.registry.ca_pem}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        return {"metadata": {"name": "registry"}, "data": data}

    async def push(
        self, backup: CheckpointBackup, run: int, container: str = "trainer", mode: str = "container", to: str = ""
    ) -> str:
        facts = ImageFacts(
            mode=mode,  # type: ignore[arg-type]
            owner_uid=backup.metadata.uid,
            owner_kind="CheckpointBackup",
            container=container,
            run=run,
            created="2026-01-02T03:04:05Z",
            base_image="r.example/base@sha256:" + "cd" * 32,
            engine="containerd",
            engine_version="2.2.9",
            cpu_flags=FLAGS,
        )
        tag = f"{tag_prefix('nightly', container)}-{run:06d}-20260102T030405Z"
        plain_http = (to,) if to else ()
        address = registry_address(to or self.registry.address.host, plain_http)
        credential = RegistryCredential() if to else self.registry.credential()
        async with RegistryClient(
            address, credential, deadline_s=time.monotonic() + 60, plain_http=plain_http
        ) as client:
            pushed = await push_image(
                client, self.repository, tag, facts, BytesBlob(f"{backup.metadata.uid}{run}".encode())
            )
        return pushed.digest

    async def say(self, **status: Any) -> None:
        key = Key(self.lab.namespace, "nightly")
        await self.lab.cluster.patch_status(CHECKPOINT_BACKUPS, key, {"status": status})

    async def allow_node(self, **labels: str) -> None:
        """A node that may restore, and has the processor for it."""
        body = {
            "metadata": {
                "name": "can-restore",
                "labels": {"holdfast.dev/restore": "true", "kubernetes.io/hostname": "can-restore", **labels},
                "annotations": {CPU_FLAGS_ANNOTATION: " ".join(FLAGS)},
            }
        }
        await self.lab.cluster.create(NODES, body)
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.2.9"},
        }
        await self.lab.cluster.patch_status(NODES, Key("", "can-restore"), {"status": status})


@pytest.fixture
async def backups(embedded: CommandLab, registry: RunningRegistry) -> Backups:
    return Backups(embedded, registry)


async def test_the_newest_run_becomes_a_pod_by_digest_on_nodes_that_can(backups: Backups) -> None:
    await backups.lab.pod("counter", {"app": "counter"})
    backup = await backups.create()
    await backups.push(backup, 1)
    digest = await backups.push(backup, 2)
    await backups.allow_node()
    pod = yaml.safe_load(await backups.lab.good("restore", "nightly", "--dry-run"))
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"{backups.where}@{digest}"
    assert pod["metadata"]["name"] == "counter-run-2"
    assert pod["metadata"]["labels"] == {"app": "counter"}
    assert pod["spec"]["nodeSelector"] == {"holdfast.dev/restore": "true"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "nodeName" not in pod["spec"]


async def test_an_older_run_can_be_named(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    backup = await backups.create()
    digest = await backups.push(backup, 1)
    await backups.push(backup, 2)
    await backups.allow_node()
    shown = await backups.lab.good("restore", "nightly", "--run", "1", "--name", "again", "--dry-run")
    pod = yaml.safe_load(shown)
    assert pod["metadata"]["name"] == "again"
    assert pod["spec"]["containers"][0]["image"].endswith(digest)


@pytest.mark.parametrize("batch", [1, 50])
async def test_a_run_that_lacks_a_container_is_passed_over(
    backups: Backups, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoints.images.newest.BATCH", batch)
    await backups.lab.pod("counter", {})
    backup = await backups.create(containers=[{"name": "trainer"}, {"name": "logger"}])
    both = [await backups.push(backup, 1, name) for name in ("trainer", "logger")]
    await backups.push(backup, 2, "trainer")
    await backups.allow_node()
    containers = [{"name": name, "image": "x"} for name in ("trainer", "logger")]
    manifest = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": containers}})
    done = await backups.lab.holdfast("restore", "nightly", "-f", "-", "--dry-run", stdin=manifest)
    images = [each["image"].partition("@")[2] for each in yaml.safe_load(done.out)["spec"]["containers"]]
    assert images == both
    named = await backups.lab.holdfast("restore", "nightly", "-f", "-", "--dry-run", "--run", "2", stdin=manifest)
    images = [each["image"] for each in yaml.safe_load(named.out)["spec"]["containers"]]
    assert images[1] == "x", "who names a run takes it as it is"


async def test_the_run_of_the_status_needs_no_list_of_tags(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    backup = await backups.create()
    digest = await backups.push(backup, 7)
    await backups.push(backup, 8)
    image = f"{backups.where}:{tag_prefix('nightly', 'trainer')}-000007-20260102T030405Z"
    built = [{"containerName": "trainer", "imageName": image, "digest": digest}]
    await backups.say(run=7, phase="Completed", builtImages=built)
    await backups.allow_node()
    pod = yaml.safe_load(await backups.lab.good("restore", "nightly", "--dry-run"))
    assert pod["metadata"]["annotations"]["holdfast.dev/restored-from"] == "nightly run 7"


async def test_a_registry_without_tls_is_asked_if_it_is_listed(backups: Backups, tmp_path: Path) -> None:
    async with serve_registry(tmp_path) as host:
        await backups.lab.pod("counter", {})
        backup = await backups.create(registry={"url": host, "repository": backups.repository})
        await backups.push(backup, 1, to=host)
        await backups.allow_node()
        refused = await backups.lab.holdfast("restore", "nightly", "--dry-run")
        assert "list it with the option --plain-http-registry" in refused.err
        listed = ("--plain-http-registry", host)
        pod = yaml.safe_load(await backups.lab.good("restore", "nightly", "--dry-run", *listed))
        assert pod["spec"]["containers"][0]["image"].startswith(f"{host}/{backups.repository}@sha256:")
        misspelt = await backups.lab.holdfast("restore", "nightly", "--plain-http-registry", "http://x")
        assert (misspelt.code, "write its host and port" in misspelt.err) == (2, True)


async def test_where_no_node_may_restore_the_message_says_what_to_switch_on(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    backup = await backups.create()
    await backups.push(backup, 1)
    await backups.lab.cluster.create(NODES, {"metadata": {"name": "plain"}})
    said = await backups.lab.refused("restore", "nightly")
    assert "no node has the label holdfast.dev/restore=true" in said
    assert "enable_experimental_restore_via_create = true" in said
    assert not [pod for pod in (await backups.lab.cluster.list(PODS)).items if pod.metadata.name != "counter"]


async def test_a_named_node_that_can_not_is_refused_with_the_reason(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    backup = await backups.create()
    await backups.push(backup, 1)
    await backups.allow_node()
    await backups.lab.cluster.create(NODES, {"metadata": {"name": "plain"}})
    said = await backups.lab.refused("restore", "nightly", "--node", "plain")
    assert "no node has the label" in said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"run": 0}, "no run has images for trainer"),
        ({"run": 1, "phase": "Failed", "message": "the pod has ended"}, "it is Failed: the pod has ended"),
    ],
)
async def test_a_backup_without_images_says_how_it_is(backups: Backups, status: dict[str, Any], said: str) -> None:
    await backups.lab.pod("counter", {})
    await backups.create()
    await backups.say(**status)
    assert said in await backups.lab.refused("restore", "nightly")


async def test_a_run_that_is_not_there_is_named(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    await backups.push(await backups.create(), 1)
    assert "run 5 is not there for trainer" in await backups.lab.refused("restore", "nightly", "--run", "5")


async def test_an_image_that_the_training_saved_itself_is_no_container(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    await backups.push(await backups.create(), 1, mode="application")
    assert "spec.checkpoint.resumeFrom" in await backups.lab.refused("restore", "nightly")


async def test_a_pod_that_is_gone_is_asked_for_as_a_manifest(backups: Backups, tmp_path: Path) -> None:
    backup = await backups.create()
    await backups.push(backup, 1)
    await backups.allow_node()
    said = await backups.lab.refused("restore", "nightly", code=2)
    assert "is gone: write its manifest, or that of the workload that made it, with -f" in said
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}}))
    pod = yaml.safe_load(await backups.lab.good("restore", "nightly", "-f", str(file), "--dry-run"))
    assert pod["spec"]["containers"][0]["image"].startswith(backups.registry.address.host)


async def test_a_manifest_without_a_pod_or_without_the_container_is_refused(backups: Backups, tmp_path: Path) -> None:
    backup = await backups.create(containers=[{"name": "trainer"}])
    await backups.push(backup, 1)
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}))
    assert "holds no pod" in await backups.lab.refused("restore", "nightly", "-f", str(file), code=2)
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "other"}]}}))
    said = await backups.lab.refused("restore", "nightly", "-f", str(file), code=2)
    assert "the pod template has no container trainer" in said


async def test_a_secret_that_nodes_can_not_use_is_not_given_to_them(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    await backups.push(await backups.create(docker_config=False), 1)
    await backups.allow_node()
    done = await backups.lab.holdfast("restore", "nightly", "--dry-run")
    assert "--pull-secret names a Secret that they can use" in done.err
    assert "imagePullSecrets" not in done.out
    named = yaml.safe_load(await backups.lab.good("restore", "nightly", "--dry-run", "--pull-secret", "nodes"))
    assert named["spec"]["imagePullSecrets"] == [{"name": "nodes"}]


async def test_no_credential_is_printed(backups: Backups) -> None:
    await backups.lab.pod("counter", {})
    await backups.push(await backups.create(), 1)
    await backups.allow_node()
    done = await backups.lab.holdfast("restore", "nightly", "--dry-run")
    assert PASSWORD not in done.out + done.err


async def test_a_node_is_tried_with_a_registry_and_not_if_its_runtime_can_not(backups: Backups) -> None:
    said = await backups.lab.refused("doctor", "--node", "new", code=2)
    assert "holdfast doctor --node NODE --registry HOST/REPOSITORY" in said
    await backups.lab.cluster.create(NODES, {"metadata": {"name": "new"}})
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"containerRuntimeVersion": "containerd://2.4.0"},
    }
    await backups.lab.cluster.patch_status(NODES, Key("", "new"), {"status": status})
    said = await backups.lab.refused("doctor", "--node", "new", "--registry", "r.example/team")
    assert "containerd 2.4 and newer create no containers from checkpoint images" in said
    assert not (await backups.lab.cluster.list(PODS)).items
