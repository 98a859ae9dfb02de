"""Volumes: folders that the pod's own words for them lead to."""

import base64
import stat
from pathlib import Path

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import CLAIMS, SECRETS
from holdfast.local.kubelet.kubelet import ReclaimFailed
from tests.contract.kinds import CONFIG_MAPS
from tests.control_plane.waiting import eventually
from tests.local.kubelet.bench import Bench, MakeBench, python, shell, state, terminated


def mounted(name: str, path: str, **more: object) -> JSON:
    return {"volumeMounts": [{"name": name, "mountPath": path, **more}]}


async def claim(bench: Bench, name: str, **metadata: object) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await bench.cluster.create(
        CLAIMS, {"metadata": {"name": name, **metadata}, "spec": spec}, namespace=bench.namespace
    )


async def test_a_config_map_is_read_where_the_variable_says(bench: Bench) -> None:
    data = {"config.json": '{"model": "mlp"}', "other": "x"}
    await bench.cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": data}, namespace=bench.namespace)
    env = [{"name": "CONFIG_FILE", "value": "/etc/holdfast/config.json"}]
    read = "import os; print(open(os.environ['CONFIG_FILE']).read())"
    pod = await bench.ended(
        python(read, env=env, **mounted("config", "/etc/holdfast")),
        volumes=[{"name": "config", "configMap": {"name": "c"}}],
    )
    assert await bench.log(pod.metadata.key) == '{"model": "mlp"}\n'


async def test_items_choose_keys_and_paths(bench: Bench) -> None:
    body = {"metadata": {"name": "c"}, "data": {"a": "A", "b": "B"}}
    await bench.cluster.create(CONFIG_MAPS, body, namespace=bench.namespace)
    volume = {"name": "config", "configMap": {"name": "c", "items": [{"key": "a", "path": "deep/er"}]}}
    pod = await bench.ended(shell("cd /config; find . -type f", **mounted("config", "/config")), volumes=[volume])
    assert await bench.log(pod.metadata.key) == "./deep/er\n"


async def test_a_secret_is_readable_by_its_owner_alone(bench: Bench) -> None:
    body = {"metadata": {"name": "s"}, "data": {"key": base64.b64encode(b"\x00\xff").decode()}}
    await bench.cluster.create(SECRETS, body, namespace=bench.namespace)
    script = "stat -c '%a' /secret/. /secret/key; od -An -tx1 /secret/key"
    pod = await bench.ended(
        shell(script, **mounted("secret", "/secret")), volumes=[{"name": "secret", "secret": {"secretName": "s"}}]
    )
    assert (await bench.log(pod.metadata.key)).split() == ["700", "400", "00", "ff"]


async def test_other_users_reach_no_volume_whatever_the_folder_around_them_allows(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    (tmp_path / "data" / "volumes").mkdir(parents=True)
    (tmp_path / "data" / "volumes").chmod(0o755)
    bench = await make_bench()
    assert [stat.S_IMODE((bench.data / name).stat().st_mode) for name in ("pods", "volumes")] == [0o700, 0o700]


async def test_a_link_below_the_containers_root_leads_to_every_volume(bench: Bench) -> None:
    script = 'echo x > "$HOLDFAST_ROOT/var/cache/file"; cat /var/cache/file'
    pod = await bench.ended(
        shell(script, **mounted("cache", "/var/cache")), volumes=[{"name": "cache", "emptyDir": {"medium": "Memory"}}]
    )
    assert await bench.log(pod.metadata.key) == "x\n"


async def test_an_empty_folder_is_shared_by_the_containers_and_gone_with_the_pod(bench: Bench) -> None:
    pod = await bench.ended(
        shell("cat /in/file", **mounted("shared", "/in")),
        initContainers=[shell("echo shared > /out/file", name="writer", **mounted("shared", "/out"))],
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    assert await bench.log(pod.metadata.key) == "shared\n"

    async def is_there() -> bool:
        return (bench.folder(pod) / "volumes").exists()

    await eventually(is_there, lambda there: not there, what="the folder is gone")


async def test_a_claim_outlives_the_pod(bench: Bench) -> None:
    await claim(bench, "checkpoints")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    first = await bench.ended(shell("echo kept > /data/file", **mounted("data", "/data")), name="a", volumes=volumes)
    await bench.delete(first.metadata.key)
    await bench.gone(first.metadata.key)
    second = await bench.ended(shell("cat /data/file", **mounted("data", "/data")), name="b", volumes=volumes)
    assert await bench.log(second.metadata.key) == "kept\n"


async def test_a_missing_claim_is_waited_for(bench: Bench) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    key = await bench.start(shell("true", **mounted("data", "/data")), volumes=volumes)
    pod = await bench.until(
        key, lambda pod: "is not there" in state(pod).get("waiting", {}).get("message", ""), "it waits for the claim"
    )
    assert pod.status["phase"] == "Pending"
    assert state(pod)["waiting"]["reason"] == "ContainerCreating"
    assert state(pod)["waiting"]["message"] == 'PersistentVolumeClaim "checkpoints" is not there; create it'
    await claim(bench, "checkpoints")
    await bench.phase(key, "Succeeded")


async def test_a_pod_that_waits_for_a_volume_can_be_deleted(bench: Bench) -> None:
    key = await bench.start(shell("true"), volumes=[{"name": "c", "configMap": {"name": "missing"}}])
    await bench.until(
        key, lambda pod: "is not there" in state(pod).get("waiting", {}).get("message", ""), "it waits for the volume"
    )
    await bench.delete(key)
    await bench.gone(key)


async def test_a_host_path_is_the_hosts_own(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x.csv").write_text("1,2\n")
    volumes = [{"name": "set", "hostPath": {"path": str(tmp_path / "set"), "type": "Directory"}}]
    pod = await bench.ended(shell("cat --  /set/x.csv", **mounted("set", "/set")), volumes=volumes)
    assert await bench.log(pod.metadata.key) == "1,2\n"


async def test_a_sub_path_is_a_folder_of_the_volume(bench: Bench) -> None:
    await claim(bench, "shared")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
    env = [{"name": "RANK", "value": "3"}]
    await bench.ended(
        shell("echo three > /data/x", env=env, **mounted("data", "/data", subPathExpr="rank-$(RANK)")),
        name="a",
        volumes=volumes,
    )
    pod = await bench.ended(shell("cat /data/rank-3/x", **mounted("data", "/data")), name="b", volumes=volumes)
    assert await bench.log(pod.metadata.key) == "three\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            {"nfs": {"server": "10.0.0.1", "path": "/"}},
            "volume share is on an NFS server, and this machine mounts nothing",
        ),
        (
            {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}},
            "volume share is of a kind that this machine does not have",
        ),
    ],
)
async def test_a_volume_that_this_machine_can_not_have_is_refused(bench: Bench, source: JSON, says: str) -> None:
    pod = await bench.ended(shell("true"), volumes=[{"name": "share", **source}])
    assert (pod.status["phase"], pod.status["reason"]) == ("Failed", "VolumeNotSupported")
    assert says in pod.status["message"]
    assert "use " in pod.status["message"]
    assert "persistentVolumeClaim" in pod.status["message"]


async def test_a_claim_that_is_going_is_not_used_anew(bench: Bench) -> None:
    await claim(bench, "data", finalizers=["holdfast.dev/look"])
    await bench.cluster.delete(CLAIMS, Key(bench.namespace, "data"))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    key = await bench.start(shell("true", **mounted("data", "/data")), volumes=volumes)
    pod = await bench.until(
        key, lambda pod: "is being deleted" in state(pod).get("waiting", {}).get("message", ""), "it waits"
    )
    assert pod.status["phase"] == "Pending"
    assert list((bench.data / "volumes").iterdir()) == []
    await bench.cluster.patch(CLAIMS, Key(bench.namespace, "data"), {"metadata": {"finalizers": []}})


async def test_a_folder_that_stays_is_not_taken_for_removed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_vain(_folder: Path) -> None:
        """As for files that not even their owner may remove."""

    (bench.data / "volumes" / "ns" / "data").mkdir(parents=True)
    monkeypatch.setattr("holdfast.local.kubelet.volumes.remove", in_vain)
    with pytest.raises(ReclaimFailed, match="the folder of claim ns/data, can't be removed: remove it by hand"):
        await bench.machine.reclaim(Key("ns", "data"))


async def test_what_is_stored_for_a_claim_is_removed_with_it_and_nothing_else_is(bench: Bench) -> None:
    for name in ("goes", "stays"):
        await claim(bench, name)
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        script = "mkdir /data/deep; echo x > /data/deep/file; chmod 500 /data/deep"
        await bench.ended(shell(script, **mounted("data", "/data")), name=name, volumes=volumes)
    await bench.machine.reclaim(Key(bench.namespace, "goes"))
    await bench.machine.reclaim(Key(bench.namespace, "never-used"))
    kept = bench.data / "volumes" / bench.namespace
    assert [each.name for each in kept.iterdir()] == ["stays"]
    assert (kept / "stays" / "deep" / "file").read_text() == "x\n"


async def test_the_downward_api_writes_files(bench: Bench) -> None:
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}},
    ]
    pod = await bench.ended(
        shell("cat /me/labels /me/cpu", resources={"requests": {"cpu": "100m"}}, **mounted("me", "/me")),
        volumes=[{"name": "me", "downwardAPI": {"items": items}}],
        metadata={"labels": {"a": "1", "b": "2"}},
    )
    assert await bench.log(pod.metadata.key) == 'a="1"\nb="2"100'


@pytest.mark.parametrize("engine", ["kubernetes"], indirect=True)
async def test_a_service_accounts_volume_comes_without_a_token(bench: Bench) -> None:
    """What the API server adds by itself must not keep a pod from running."""
    pod = await bench.ended(
        shell("ls /var/run/secrets/kubernetes.io/serviceaccount"), automountServiceAccountToken=True
    )
    assert pod.status["phase"] == "Succeeded", terminated(pod)
    assert (await bench.log(pod.metadata.key)).split() == ["ca.crt", "namespace"]
