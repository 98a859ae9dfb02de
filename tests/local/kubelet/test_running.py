"""Pods as processes: how they start, end and are reported."""

import sys

from tests.local.kubelet.bench import IMAGE, Bench, MakeBench, condition, python, shell, status_of, terminated


async def test_a_command_that_ends_well_makes_a_succeeded_pod(bench: Bench) -> None:
    pod = await bench.ended(shell("echo hello; echo world >&2"))
    assert pod.status["phase"] == "Succeeded"
    assert terminated(pod)["exitCode"] == 0
    assert terminated(pod)["reason"] == "Completed"
    assert terminated(pod)["finishedAt"] >= terminated(pod)["startedAt"]
    assert (condition(pod, "Ready")["status"], condition(pod, "Ready")["reason"]) == ("False", "PodCompleted")
    assert await bench.log(pod.metadata.key) == "hello\nworld\n"


async def test_a_command_that_fails_makes_a_failed_pod_with_its_exit_code(bench: Bench) -> None:
    pod = await bench.ended(shell("exit 7"))
    assert pod.status["phase"] == "Failed"
    assert terminated(pod)["exitCode"] == 7
    assert terminated(pod)["reason"] == "Error"


async def test_a_command_that_a_signal_ends_is_reported_as_128_and_the_signal(bench: Bench) -> None:
    pod = await bench.ended(shell("kill -SEGV $$$$"))
    assert (terminated(pod)["exitCode"], terminated(pod)["signal"]) == (139, 11)


async def test_a_running_pod_is_ready_and_has_an_address_of_its_own(bench: Bench) -> None:
    first = await bench.phase(await bench.start(shell("sleep 60"), name="a"), "Running")
    second = await bench.phase(await bench.start(shell("sleep 60"), name="b"), "Running")
    assert condition(first, "Ready")["status"] == condition(first, "ContainersReady")["status"] == "True"
    assert condition(first, "Initialized")["status"] == "True"
    assert status_of(first)["ready"]
    assert first.status["podIP"].startswith("127.")
    assert first.status["podIP"] != second.status["podIP"]
    assert first.status["startTime"]


async def test_python_means_the_interpreter_that_runs_holdfast(bench: Bench) -> None:
    pod = await bench.ended(python("import sys; print(sys.executable)"))
    assert await bench.log(pod.metadata.key) == f"{sys.executable}\n"


async def test_a_command_that_is_not_there_is_a_start_error_that_names_it(bench: Bench) -> None:
    pod = await bench.ended({"name": "main", "image": IMAGE, "command": ["no-such-program"]})
    assert pod.status["phase"] == "Failed"
    assert terminated(pod)["reason"] == "StartError"
    assert terminated(pod)["exitCode"] == 128
    assert terminated(pod)["message"] == "can't run no-such-program: No such file or directory"


async def test_a_command_that_is_not_executable_is_a_start_error(bench: Bench) -> None:
    pod = await bench.ended({"name": "main", "image": IMAGE, "command": ["/etc/passwd"]})
    assert terminated(pod)["message"] == "can't run /etc/passwd: Permission denied"


async def test_a_working_directory_that_is_not_there_is_named(bench: Bench) -> None:
    pod = await bench.ended(shell("true", workingDir="/no/such/folder"))
    assert terminated(pod)["message"] == ("can't use the working directory /no/such/folder: No such file or directory")


async def test_an_image_without_a_command_fails_at_once_and_says_why(bench: Bench) -> None:
    pod = await bench.ended({"name": "main", "image": IMAGE}, restartPolicy="Always")
    assert pod.status["phase"] == "Failed"
    assert pod.status["reason"] == "ImageNotRun"
    assert "this machine runs commands, not images" in pod.status["message"]
    assert terminated(pod)["reason"] == "ContainerCannotRun"


async def test_the_default_image_runs_the_default_command(make_bench: MakeBench) -> None:
    bench = await make_bench(default_image="holdfast:1", default_command=("echo", "reference"))
    pod = await bench.ended({"name": "main", "image": "holdfast:1", "args": ["trainer"]})
    assert await bench.log(pod.metadata.key) == "reference trainer\n"


async def test_a_failing_container_is_restarted_where_the_policy_says_so(bench: Bench) -> None:
    script = 'test -e "$HOME/again" && exit 0; touch "$HOME/again"; exit 3'
    pod = await bench.ended(shell(script), restartPolicy="OnFailure")
    assert pod.status["phase"] == "Succeeded"
    assert status_of(pod)["restartCount"] == 1
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 3


async def test_a_container_that_keeps_failing_backs_off(bench: Bench) -> None:
    key = await bench.start(shell("exit 3"), restartPolicy="Always")
    pod = await bench.until(
        key, lambda pod: status_of(pod)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff", "it backs off"
    )
    assert pod.status["phase"] == "Running"
    assert status_of(pod)["restartCount"] == 1
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 3


async def test_all_containers_of_a_pod_run_at_the_same_time(bench: Bench) -> None:
    wait = "until test -e {}; do sleep 0.05; done"
    volume = {"volumes": [{"name": "shared", "emptyDir": {}}]}
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    pod = await bench.ended(
        shell(f"touch /shared/a; {wait.format('/shared/b')}", name="a", **mount),
        shell(f"touch /shared/b; {wait.format('/shared/a')}", name="b", **mount),
        **volume,
    )
    assert pod.status["phase"] == "Succeeded"


async def test_a_pod_that_is_active_for_too_long_fails(bench: Bench) -> None:
    pod = await bench.ended(shell("sleep 60"), activeDeadlineSeconds=1)
    assert (pod.status["phase"], pod.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert terminated(pod)["exitCode"] == 143
