"""logs of SpotInstanceJobs, on the embedded engine: a real Job would own pods of its own making alone."""

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import JOBS, PODS, SPOT_INSTANCE_JOBS
from holdfast.spotinstancejob.names import base_image_pod_name, job_name, replica_labels
from tests.cli.lab import CommandLab, finished, line_of

SAID = "line 1\nline 2\nline 3\n"
TEMPLATE = {"spec": {"template": {"spec": {"containers": [{"name": "training", "image": "example.com/train:1"}]}}}}


async def spot_job(lab: CommandLab, *, replicas: int = 2, phase: str = "Running", message: str = "") -> None:
    spec = {
        "replicas": replicas,
        "jobTemplate": TEMPLATE,
        "checkpointConfig": {"checkpointImageRepo": "registry.example.com/sums", "checkpointInterval": "30m"},
        "spotInstanceVMRef": {"name": "here"},
        "gcpCredentialsSecretRef": {"name": "credentials"},
    }
    await lab.cluster.create(SPOT_INSTANCE_JOBS, {"metadata": {"name": "sums"}, "spec": spec}, namespace=lab.namespace)
    await say(lab, {"phase": phase, "message": message})


async def say(lab: CommandLab, status: JSON) -> None:
    await lab.cluster.patch_status(SPOT_INSTANCE_JOBS, Key(lab.namespace, "sums"), {"status": status})


async def replica(lab: CommandLab, number: int, attempt: int = 0, *, prefix: str = "pod") -> str:
    """The pod of an attempt of a replica, with a suspended Job that owns it and makes no pods of its own."""
    job, labels = job_name("sums", number, attempt), replica_labels("sums", number, attempt)
    template = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", **TEMPLATE["spec"]["template"]["spec"]},
    }
    owner = await lab.cluster.create(
        JOBS,
        {"metadata": {"name": job, "labels": labels}, "spec": {"suspend": True, "template": template}},
        namespace=lab.namespace,
    )
    name = f"{prefix}-{job}"
    await lab.pod(name, {})
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": owner.metadata.uid, "controller": True}
    await lab.cluster.patch(
        PODS, Key(lab.namespace, name), {"metadata": {"labels": labels, "ownerReferences": [reference]}}
    )
    return name


async def test_a_replica_has_the_log_of_its_newest_attempt(embedded: CommandLab) -> None:
    await spot_job(embedded)
    await replica(embedded, 0)
    assert await embedded.good("logs", "sums") == SAID
    assert await embedded.good("logs", "sij/sums", "--tail", "1") == "line 3\n"
    assert "replica 1" in await embedded.refused("logs", "sums", "--worker", "1")


async def test_all_replicas_have_their_number_before_each_line(embedded: CommandLab) -> None:
    await spot_job(embedded)
    await replica(embedded, 0, attempt=3)
    await replica(embedded, 1)
    lines = (await embedded.good("logs", "sums", "--all")).splitlines()
    assert lines == [f"[{number}] line {line}" for number in (0, 1) for line in (1, 2, 3)]


async def test_pods_that_only_bring_base_images_are_not_replicas(embedded: CommandLab) -> None:
    await spot_job(embedded)
    await embedded.pod(base_image_pod_name("sums", 0, 1), replica_labels("sums", 0, 1))
    assert "no log of replica 0" in await embedded.refused("logs", "sums")


async def test_what_a_replica_waits_for_is_said_where_there_is_no_log(embedded: CommandLab) -> None:
    await spot_job(embedded, phase="Provisioning", message="machine sums-r0-0-m0 boots")
    said = await embedded.refused("logs", "sij/sums")
    assert "no log of replica 0; it is Provisioning: machine sums-r0-0-m0 boots; --all shows" in said
    assert "sums has 2 replicas, 0 to 1" in await embedded.refused("logs", "sums", "--worker", "2")
    assert "in attempt 4: the pods of past attempts are deleted" in await embedded.refused(
        "logs", "sums", "--attempt", "4"
    )


async def test_an_attempt_can_be_asked_for_while_its_pod_is_there(embedded: CommandLab) -> None:
    await spot_job(embedded)
    await replica(embedded, 0, attempt=0)
    await replica(embedded, 0, attempt=1, prefix="mute")
    assert await embedded.good("logs", "sums", "--attempt", "0") == SAID


async def test_following_goes_on_with_the_next_attempt_until_the_job_ends(embedded: CommandLab) -> None:
    await spot_job(embedded, replicas=1, phase="Provisioning")
    following = await embedded.start("logs", "-f", "sums")
    await replica(embedded, 0, attempt=0, prefix="short")
    assert await line_of(following) == "line 1\n"
    await replica(embedded, 0, attempt=1, prefix="short")
    await say(embedded, {"phase": "Succeeded"})
    done = await finished(following)
    assert done.out == "line 2\nline 3\n" + SAID
    assert "following replica 0, attempt 1" in done.err
    assert done.code == 0


async def test_following_leaves_a_pod_whose_log_never_ends_for_the_next_attempt(embedded: CommandLab) -> None:
    await spot_job(embedded, replicas=1)
    await replica(embedded, 0, attempt=0)  # its node is lost: the log goes on for ever
    following = await embedded.start("logs", "-f", "sums")
    assert await line_of(following) == "line 1\n"
    await replica(embedded, 0, attempt=1, prefix="short")
    await say(embedded, {"phase": "Failed"})
    done = await finished(following)
    assert done.out == "line 2\nline 3\n" + SAID
    assert done.code == 1


async def test_following_all_shows_a_replica_while_another_waits_for_its_machine(embedded: CommandLab) -> None:
    await spot_job(embedded)
    await replica(embedded, 1, prefix="short")
    following = await embedded.start("logs", "-f", "sums", "--all")
    assert await line_of(following) == "[1] line 1\n"
    await replica(embedded, 0, prefix="short")
    await say(embedded, {"phase": "Succeeded"})
    done = await finished(following)
    assert sorted(done.out.splitlines()) == sorted(["[1] line 2", "[1] line 3", *(f"[0] line {n}" for n in (1, 2, 3))])
    assert done.code == 0
