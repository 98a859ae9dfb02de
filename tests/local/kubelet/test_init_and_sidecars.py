"""What runs before the main containers, and beside them."""

from pathlib import Path

from holdfast.cluster.protocol import JSON
from tests.local.kubelet.bench import Bench, condition, python, shell, state, status_of, terminated

SHARED: JSON = {"volumes": [{"name": "shared", "emptyDir": {}}]}
MOUNT: JSON = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
INIT = "initContainerStatuses"

# Ends only when it is told to, and leaves a line that says so.
PATIENT = "trap 'echo {0} >> /shared/ends; exit 0' TERM; echo {0} >> /shared/starts; while :; do sleep 0.05; done"


async def test_init_containers_run_one_after_the_other_before_the_main_one(bench: Bench) -> None:
    pod = await bench.ended(
        shell("cat /shared/order", **MOUNT),
        initContainers=[
            shell("sleep 0.3; echo one >> /shared/order", name="one", **MOUNT),
            shell("echo two >> /shared/order", name="two", **MOUNT),
        ],
        **SHARED,
    )
    assert await bench.log(pod.metadata.key) == "one\ntwo\n"
    assert [terminated(pod, name, kind=INIT)["exitCode"] for name in ("one", "two")] == [0, 0]
    assert condition(pod, "Initialized")["status"] == "True"


async def test_a_failing_init_container_fails_a_pod_that_is_not_restarted(bench: Bench) -> None:
    pod = await bench.ended(shell("echo never"), initContainers=[shell("exit 4", name="check")])
    assert pod.status["phase"] == "Failed"
    assert terminated(pod, "check", kind=INIT)["exitCode"] == 4
    assert "waiting" in state(pod)
    assert condition(pod, "Initialized")["status"] == "False"


async def test_a_failing_init_container_is_tried_again_where_the_policy_says_so(bench: Bench) -> None:
    once = 'test -e "$HOME/again" || { touch "$HOME/again"; exit 1; }'
    pod = await bench.ended(shell("true"), initContainers=[shell(once, name="check")], restartPolicy="OnFailure")
    assert pod.status["phase"] == "Succeeded"
    assert status_of(pod, "check", kind=INIT)["restartCount"] == 1


async def test_a_pod_is_pending_while_it_initializes(bench: Bench) -> None:
    key = await bench.start(shell("true"), initContainers=[shell("sleep 60", name="slow")])
    pod = await bench.until(key, lambda pod: "running" in state(pod, "slow", kind=INIT), "it initializes")
    assert pod.status["phase"] == "Pending"
    assert condition(pod, "Initialized")["reason"] == "ContainersNotInitialized"
    assert state(pod)["waiting"]["reason"] == "PodInitializing"


async def test_a_sidecar_starts_before_the_main_container_and_does_not_keep_the_pod(bench: Bench) -> None:
    sidecar = shell(PATIENT.format("sidecar"), name="sidecar", restartPolicy="Always", **MOUNT)
    wait = "until test -e /shared/starts; do sleep 0.05; done; echo main >> /shared/starts"
    pod = await bench.ended(shell(wait, **MOUNT), initContainers=[sidecar], **SHARED)
    assert pod.status["phase"] == "Succeeded"
    assert terminated(pod, "sidecar", kind=INIT)["exitCode"] == 0


async def test_the_main_container_waits_for_the_sidecars_startup_probe(bench: Bench) -> None:
    probe = {"exec": {"command": ["test", "-e", "/shared/restored"]}, "periodSeconds": 1}
    sidecar = shell(
        "sleep 0.5; echo restored > /shared/restored; sleep 60",
        name="sidecar",
        restartPolicy="Always",
        startupProbe=probe,
        **MOUNT,
    )
    pod = await bench.ended(shell("cat /shared/restored", **MOUNT), initContainers=[sidecar], **SHARED)
    assert pod.status["phase"] == "Succeeded"
    assert await bench.log(pod.metadata.key, container="main") == "restored\n"


async def test_sidecars_stop_after_the_main_containers_in_reverse_order(bench: Bench, tmp_path: Path) -> None:
    tmp_path.joinpath("order").mkdir()
    volumes: JSON = {"volumes": [{"name": "shared", "hostPath": {"path": str(tmp_path / "order")}}]}
    sidecars = [shell(PATIENT.format(name), name=name, restartPolicy="Always", **MOUNT) for name in ("first", "second")]
    wait = 'until test "$(wc -l < /shared/starts)" = 2; do sleep 0.05; done; echo main >> /shared/ends'
    await bench.ended(shell(wait, **MOUNT), initContainers=sidecars, **volumes)
    assert tmp_path.joinpath("order", "ends").read_text().split() == ["main", "second", "first"]


async def test_a_sidecar_that_ends_is_started_again(bench: Bench) -> None:
    sidecar = shell("echo x >> /shared/starts", name="sidecar", restartPolicy="Always", **MOUNT)
    wait = 'until test "$(wc -l < /shared/starts)" = 2; do sleep 0.05; done'
    pod = await bench.ended(shell(wait, **MOUNT), initContainers=[sidecar], **SHARED)
    assert pod.status["phase"] == "Succeeded"
    assert status_of(pod, "sidecar", kind=INIT)["restartCount"] >= 1


async def test_deleting_a_pod_stops_the_main_container_before_its_sidecar(bench: Bench, tmp_path: Path) -> None:
    tmp_path.joinpath("order").mkdir()
    volumes: JSON = {"volumes": [{"name": "shared", "hostPath": {"path": str(tmp_path / "order")}}]}
    sidecar = shell(PATIENT.format("sidecar"), name="sidecar", restartPolicy="Always", **MOUNT)
    slow = python(
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    with open('/shared/ends', 'a') as file: file.write('main\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)",
        **MOUNT,
    )
    key = await bench.start(slow, initContainers=[sidecar], **volumes)
    await bench.logged(key, "up")
    await bench.delete(key)
    await bench.gone(key)
    assert tmp_path.joinpath("order", "ends").read_text().split() == ["main", "sidecar"]
