"""Probes and hooks, over all three ways to ask."""

import pytest

from holdfast.cluster.protocol import JSON
from tests.local.kubelet.bench import Bench, condition, python, shell, status_of, terminated

SERVER = (
    "import http.server, os, pathlib\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        found = pathlib.Path(os.environ['HOME'], self.path.strip('/')).exists()\n"
    "        print(self.path, self.headers.get('X-Probe'), flush=True)\n"
    "        self.send_response(200 if found else 503); self.end_headers()\n"
    "    def log_message(self, *_): pass\n"
    "pathlib.Path('alive').touch()\n"
    "server = http.server.ThreadingHTTPServer((os.environ['POD_IP'], 8080), Handler)\n"
    "print('up', flush=True)\n"
    "server.serve_forever()"
)
POD_IP: JSON = {"env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
OFTEN: JSON = {"periodSeconds": 1, "failureThreshold": 1}
PORTS: JSON = {"ports": [{"name": "web", "containerPort": 8080}]}


async def test_a_pod_is_ready_when_its_readiness_probe_passes_and_not_before(bench: Bench) -> None:
    probe = {"httpGet": {"path": "/ready", "port": "web", "httpHeaders": [{"name": "X-Probe", "value": "1"}]}, **OFTEN}
    key = await bench.start(python(SERVER, readinessProbe=probe, **POD_IP, **PORTS))
    await bench.logged(key, "/ready 1")
    pod = await bench.phase(key, "Running")
    assert condition(pod, "Ready")["status"] == "False"
    (bench.folder(pod) / "containers/main/work/ready").touch()
    await bench.until(key, lambda pod: condition(pod, "Ready")["status"] == "True", "it is ready")
    (bench.folder(pod) / "containers/main/work/ready").unlink()
    pod = await bench.until(key, lambda pod: condition(pod, "Ready")["status"] == "False", "it is not ready")
    assert status_of(pod)["restartCount"] == 0


async def test_a_container_whose_liveness_probe_fails_is_stopped(bench: Bench) -> None:
    probe = {"httpGet": {"path": "/alive", "port": 8080}, **OFTEN}
    startup = {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 60}
    key = await bench.start(python(SERVER, livenessProbe=probe, startupProbe=startup, **POD_IP, **PORTS))
    pod = await bench.until(key, lambda pod: status_of(pod).get("started"), "it has started")
    await bench.logged(key, "/alive")
    (bench.folder(pod) / "containers/main/work/alive").unlink()
    pod = await bench.phase(key, "Failed")
    assert terminated(pod)["exitCode"] == 143
    assert terminated(pod)["message"].startswith("liveness probe failed 1 times: HTTP 503 from http://127.")


async def test_a_startup_probe_that_never_passes_ends_the_container(bench: Bench) -> None:
    probe = {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1, "failureThreshold": 2}
    pod = await bench.ended(shell("sleep 1000", startupProbe=probe))
    assert terminated(pod)["message"] == "startup probe failed 2 times: the command ended with 1"


async def test_an_exec_probe_runs_in_the_containers_place(bench: Bench) -> None:
    test = "import os, sys; sys.exit(not (os.environ['MODEL'] == 'mlp' and os.path.exists('ready')))"
    probe = {"exec": {"command": ["python", "-c", test]}, "timeoutSeconds": 20, **OFTEN}
    main = shell("touch ready; sleep 1000", readinessProbe=probe, env=[{"name": "MODEL", "value": "mlp"}])
    key = await bench.start(main)
    await bench.until(key, lambda pod: condition(pod, "Ready").get("status") == "True", "it is ready")


async def test_an_exec_probe_that_takes_too_long_fails_and_is_ended(bench: Bench) -> None:
    probe = {"exec": {"command": ["sh", "-c", "echo asked >> asked; sleep 1000"]}, "timeoutSeconds": 1, **OFTEN}
    pod = await bench.ended(shell("sleep 1000", livenessProbe=probe))
    assert terminated(pod)["message"] == "liveness probe failed 1 times: no answer within 1 s"


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ({"exec": {"command": ["no-such-program"]}}, "the command ended with 126"),
        ({"tcpSocket": {"port": 1}}, "ConnectionRefusedError"),
        ({"httpGet": {"port": 1}}, "ClientConnectorError"),
        ({"tcpSocket": {"port": "none"}}, "container main has no port named none"),
        ({"grpc": {"port": 1}}, "this machine asks by exec, httpGet and tcpSocket alone"),
    ],
)
async def test_a_probe_that_can_not_pass_says_why(bench: Bench, probe: JSON, reason: str) -> None:
    pod = await bench.ended(shell("sleep 1000", startupProbe={**probe, **OFTEN}))
    assert reason in terminated(pod)["message"]


async def test_post_start_runs_beside_the_container_and_stops_it_when_it_fails(bench: Bench) -> None:
    def hook(script: str) -> JSON:
        return {"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", script]}}}}

    wait = "until test -e greeted; do sleep 0.05; done"
    pod = await bench.ended(shell(wait, **hook("touch greeted")))
    assert pod.status["phase"] == "Succeeded"
    pod = await bench.ended(shell("sleep 1000", **hook("exit 3")), name="second")
    assert terminated(pod)["message"] == "postStart hook failed: the command ended with 3"


async def test_pre_stop_asks_over_http(bench: Bench) -> None:
    hook = {"preStop": {"httpGet": {"path": "/save", "port": 8080}}}
    key = await bench.start(python(SERVER, lifecycle=hook, **POD_IP), metadata={"finalizers": ["holdfast.dev/look"]})
    await bench.logged(key, "up")
    await bench.delete(key)
    await bench.phase(key, "Failed")
    assert "/save None" in await bench.log(key)
    await bench.release(key)
    await bench.gone(key)
