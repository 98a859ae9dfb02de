"""What a container's processes find in their environment."""

import base64
import sys
from pathlib import Path

from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import SECRETS
from tests.contract.kinds import CONFIG_MAPS, Document
from tests.local.kubelet.bench import Bench, env_lines, python, shell, state, terminated

ENV = "env | sort"


async def variables(bench: Bench, pod: Document) -> dict[str, str]:
    assert pod.status["phase"] == "Succeeded", terminated(pod)
    return env_lines(await bench.log(pod.metadata.key))


async def config_map(bench: Bench, name: str, **data: str) -> None:
    await bench.cluster.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, namespace=bench.namespace)


async def secret(bench: Bench, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    await bench.cluster.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace=bench.namespace)


def from_field(path: str) -> JSON:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


async def test_nothing_but_the_base_and_what_is_declared_is_there(bench: Bench) -> None:
    found = await variables(bench, await bench.ended(shell(ENV, env=[{"name": "MODEL", "value": "mlp"}])))
    assert set(found) - {"_", "PWD", "SHLVL", "OLDPWD"} == {
        "CUDA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "HOLDFAST_MACHINE",
        "HOLDFAST_POD_UID",
        "HOLDFAST_ROOT",
        "HOLDFAST_TERMINATION_LOG",
        "HOME",
        "HOSTNAME",
        "LANG",
        "MODEL",
        "NVIDIA_VISIBLE_DEVICES",
        "PATH",
        "TMPDIR",
    }
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert found["HOSTNAME"] == "p"


async def test_gloo_uses_the_loopback_interface_unless_the_pod_says_otherwise(bench: Bench) -> None:
    assert (await variables(bench, await bench.ended(shell(ENV), name="told")))["GLOO_SOCKET_IFNAME"] == "lo"
    own = shell(ENV, env=[{"name": "GLOO_SOCKET_IFNAME", "value": "eth1"}])
    assert (await variables(bench, await bench.ended(own, name="own")))["GLOO_SOCKET_IFNAME"] == "eth1"


async def test_home_and_temporary_folder_lie_in_the_pods_own_folder(bench: Bench) -> None:
    pod = await bench.ended(shell('echo "$HOME"; pwd; echo "$TMPDIR"; touch "$HOME/x" "$TMPDIR/x"'))
    paths = (await bench.log(pod.metadata.key)).split()
    assert paths[0] == paths[1]
    assert all(path.startswith(str(bench.folder(pod))) for path in paths)


async def test_fields_of_the_pod_are_in_variables(bench: Bench) -> None:
    fields = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "UID": "metadata.uid",
        "INDEX": "metadata.labels['batch.kubernetes.io/job-completion-index']",
        "NOTE": "metadata.annotations['note']",
        "NODE": "spec.nodeName",
        "ACCOUNT": "spec.serviceAccountName",
        "IP": "status.podIP",
        "HOST": "status.hostIP",
    }
    metadata = {"labels": {"batch.kubernetes.io/job-completion-index": "3"}, "annotations": {"note": "a b"}}
    env = [{"name": name, **from_field(path)} for name, path in fields.items()]
    pod = await bench.ended(shell(ENV, env=env), metadata=metadata)
    found = await variables(bench, pod)
    assert {name: found[name] for name in fields} == {
        "NAME": "p",
        "NAMESPACE": bench.namespace,
        "UID": pod.metadata.uid,
        "INDEX": "3",
        "NOTE": "a b",
        "NODE": bench.node,
        "ACCOUNT": "default",
        "IP": pod.status["podIP"],
        "HOST": "127.0.0.1",
    }


async def test_resources_are_in_units_of_the_divisor_rounded_up(bench: Bench) -> None:
    def resource(name: str, divisor: str) -> JSON:
        return {"valueFrom": {"resourceFieldRef": {"resource": name, "divisor": divisor}}}

    env = [
        {"name": "CPUS", **resource("limits.cpu", "1")},
        {"name": "MILLIS", **resource("requests.cpu", "1m")},
        {"name": "MEMORY", **resource("limits.memory", "1Mi")},
    ]
    resources = {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}
    found = await variables(bench, await bench.ended(shell(ENV, env=env, resources=resources)))
    assert (found["CPUS"], found["MILLIS"], found["MEMORY"]) == ("2", "250", "64")


async def test_references_are_expanded_in_order_and_in_the_command(bench: Bench) -> None:
    env = [
        {"name": "LATER", "value": "$(RANK)"},
        {"name": "RANK", "value": "2"},
        {"name": "HOST", "value": "worker-$(RANK).$(DOMAIN)"},
        {"name": "TEXT", "value": "$$(RANK)"},
    ]
    pod = await bench.ended(shell(f"{ENV}; echo ARG=$(RANK)", env=env))
    found = await variables(bench, pod)
    assert (found["LATER"], found["HOST"], found["TEXT"]) == ("$(RANK)", "worker-2.$(DOMAIN)", "$(RANK)")
    assert found["ARG"] == "2"


async def test_keys_of_config_maps_and_secrets_become_variables(bench: Bench) -> None:
    await config_map(bench, "settings", rate="0.1", size="8")
    await secret(bench, "login", token="t0ken")
    env = [
        {"name": "RATE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "rate"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "nothing", "key": "x", "optional": True}}},
        {"name": "size", "value": "9"},
    ]
    env_from = [
        {"configMapRef": {"name": "settings"}},
        {"prefix": "S_", "secretRef": {"name": "login"}},
        {"configMapRef": {"name": "nothing", "optional": True}},
    ]
    found = await variables(bench, await bench.ended(shell(ENV, env=env, envFrom=env_from)))
    assert (found["RATE"], found["TOKEN"], found["rate"], found["S_token"]) == ("0.1", "t0ken", "0.1", "t0ken")
    assert found["size"] == "9"
    assert "NONE" not in found


async def test_a_missing_secret_is_waited_for(bench: Bench) -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}}]
    key = await bench.start(shell("env", env=env))
    pod = await bench.until(
        key,
        lambda pod: state(pod).get("waiting", {}).get("reason") == "CreateContainerConfigError",
        "it waits for the secret",
    )
    assert state(pod)["waiting"]["message"] == (
        'Secret "login" is not there; create it, or mark the reference optional'
    )
    await secret(bench, "login", token="t0ken")
    await bench.phase(key, "Succeeded")
    assert env_lines(await bench.log(key))["TOKEN"] == "t0ken"


async def test_a_missing_key_is_named(bench: Bench) -> None:
    await config_map(bench, "settings", rate="0.1")
    env = [{"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "size"}}}]
    key = await bench.start(shell("env", env=env))
    pod = await bench.until(key, lambda pod: state(pod).get("waiting", {}).get("message"), "it says what it waits for")
    assert 'ConfigMap "settings" has no key "size"' in state(pod)["waiting"]["message"]


async def test_each_gpu_belongs_to_one_pod_at_a_time(bench: Bench) -> None:
    gpus: JSON = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 60"
    first = await bench.start(shell(script, **gpus), name="first")
    second = await bench.start(shell(script, **gpus), name="second")
    devices = [set((await bench.logged(key, "\n")).strip().split(",")) for key in (first, second)]
    assert devices[0] | devices[1] == {"0", "1", "2", "3"}
    refused = await bench.ended(shell("true", **gpus), name="third")
    assert (refused.status["phase"], refused.status["reason"]) == ("Failed", "OutOfnvidia.com/gpu")
    await bench.delete(first)
    await bench.gone(first)
    fourth = await bench.start(shell(script, **gpus), name="fourth")
    assert set((await bench.logged(fourth, "\n")).strip().split(",")) == devices[0]


async def test_a_pod_without_gpus_sees_none(bench: Bench) -> None:
    found = await variables(bench, await bench.ended(shell(ENV)))
    assert found["CUDA_VISIBLE_DEVICES"] == ""


async def test_workers_reach_each_other_by_their_stable_names(bench: Bench) -> None:
    """The address of a worker is known to the others before it is there, and it is the one that it has."""
    host = f"job-0.workers.{bench.namespace}.svc"
    env = [{"name": "MASTER_ADDR", "value": host}, {"name": "PEERS", "value": f'["{host}:29500"]'}]
    listen = (
        "import os, socket\n"
        "server = socket.create_server((os.environ['MASTER_ADDR'], 29500))\n"
        "connection, _ = server.accept()\n"
        "connection.sendall(b'hello')"
    )
    call = (
        "import os, socket, time\n"
        "while True:\n"
        "    try:\n"
        "        print(socket.create_connection((os.environ['MASTER_ADDR'], 29500)).recv(5).decode())\n"
        "        break\n"
        "    except ConnectionRefusedError:\n"
        "        time.sleep(0.05)"
    )
    client = await bench.start(python(call, env=env), name="client", hostname="job-1", subdomain="workers")
    server = await bench.start(python(listen, env=env), name="server", hostname="job-0", subdomain="workers")
    pod = await bench.phase(server, "Succeeded", "Failed")
    assert (await bench.phase(client, "Succeeded", "Failed")).status["phase"] == "Succeeded"
    assert await bench.log(client) == "hello\n"
    shown = await bench.ended(shell(ENV, env=env), name="shown")
    found = await variables(bench, shown)
    assert found["MASTER_ADDR"] == pod.status["podIP"]
    assert found["PEERS"] == f'["{pod.status["podIP"]}:29500"]'
