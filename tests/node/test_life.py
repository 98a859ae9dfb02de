"""Runs that go well, from the operator's first write to the image in the registry."""

from prometheus_client import CollectorRegistry

from holdfast.api.meta import Key, is_true
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.node.agent import CheckpointAgent
from holdfast.node.metrics import AgentMetrics
from tests.control_plane.waiting import eventually
from tests.node.kubelets import TOKEN, answers
from tests.node.lab import BASE_IMAGE, AgentLab

PHASES = ["Checkpointing", "Checkpointed", "ImageBuilding", "ImageBuilt", "ImagePushing", "ImagePushed", "Completed"]


async def test_a_run_freezes_builds_and_pushes_with_one_write_for_each_phase(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    async with lab.agent():
        status = await lab.ended()
    assert lab.cluster.phases == PHASES
    assert status.phase == "Completed"
    assert is_true(status.conditions, "Completed")
    assert not is_true(status.conditions, "Failed")
    (image,) = status.built_images
    assert status.frozen_seconds is not None
    assert status.last_checkpoint_time is not None
    assert status.completion_time is not None
    ((tag, labels),) = (await lab.pulled()).items()
    assert image.image_name == f"{lab.registry.address.host}/{lab.repository}:{tag}"
    assert tag.startswith("nightly-trainer-000001-")
    async with lab.registry.client() as client:
        assert await client.resolve_tag(lab.repository, tag) == image.digest
    assert labels["dev.holdfast.base-image"] == BASE_IMAGE
    assert lab.leftovers() == []
    (call,) = lab.kubelet.calls
    assert call.target == "team/numbers/trainer"
    assert call.authorization == f"Bearer {TOKEN}"
    assert 1 <= int(call.timeout) <= 600


async def test_the_image_tells_whose_it_is_and_where_it_was_made(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    backup = await lab.backup()
    async with lab.agent():
        await lab.ended()
    (labels,) = (await lab.pulled()).values()
    expected = {
        "dev.holdfast.owner-uid": backup.metadata.uid,
        "dev.holdfast.owner-kind": "CheckpointBackup",
        "dev.holdfast.container": "trainer",
        "dev.holdfast.run": "1",
        "dev.holdfast.mode": "container",
        "dev.holdfast.replica": "2",
        "dev.holdfast.kernel": "6.1.0",
        "dev.holdfast.runtime": "containerd 2.2.9",
        "dev.holdfast.criu-version": "4.2.1",
        "dev.holdfast.cpu-flags": "avx2 sse4_2",
        "org.criu.checkpoint.container.name": "trainer",
        "org.criu.checkpoint.distribution.name": "Debian GNU/Linux",
        "org.criu.checkpoint.distribution.version": "12 (bookworm)",
        "org.criu.checkpoint.cgroup.version": "v2",
        "org.criu.checkpoint.runtime.name": "io.containerd.runc.v2",
        "io.kubernetes.cri-o.annotations.checkpoint.name": "trainer",
    }
    assert {name: labels.get(name) for name in expected} == expected


async def test_the_owner_of_an_owned_backup_is_its_controller(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    owner = {"apiVersion": "v1", "kind": "SpotInstanceJob", "name": "job", "uid": "u-1", "controller": True}
    await lab.plain.patch(CHECKPOINT_BACKUPS, Key(lab.namespace, "nightly"), {"metadata": {"ownerReferences": [owner]}})
    async with lab.agent():
        await lab.ended()
    (labels,) = (await lab.pulled()).values()
    assert labels["dev.holdfast.owner-uid"] == "u-1"
    assert labels["dev.holdfast.owner-kind"] == "SpotInstanceJob"


async def test_all_containers_but_init_containers_and_our_own_go_through_each_phase_together(lab: AgentLab) -> None:
    init = {"name": "load", "image": "i", "restartPolicy": "Always"}
    await lab.start("trainer", "logger", "holdfast-sidecar", initContainers=[init])
    await lab.begin()
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Completed"
    assert lab.cluster.phases == PHASES
    assert [image.container_name for image in status.built_images] == ["trainer", "logger"]
    assert [call.target for call in lab.kubelet.calls] == ["team/numbers/trainer", "team/numbers/logger"]
    assert lab.kubelet.most_under_way == 1
    assert len(await lab.pulled()) == 2
    assert len(lab.credentials.requests) == 1
    assert lab.leftovers() == []


async def test_only_listed_containers_are_saved_each_into_the_image_that_it_names(lab: AgentLab) -> None:
    await lab.start("trainer", "logger")
    image = f"{lab.registry.address.host}/{lab.repository}:by-hand"
    await lab.begin(containers=[{"name": "logger", "image": image}])
    async with lab.agent():
        status = await lab.ended()
    assert [image.image_name for image in status.built_images] == [image]
    assert list(await lab.pulled()) == ["by-hand"]


async def test_one_container_that_fails_does_not_keep_the_other_from_being_saved(lab: AgentLab) -> None:
    await lab.start("trainer", "logger")
    await lab.begin()
    lab.kubelet.script = [answers(500, "criu failed")]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "CompletedWithError"
    assert is_true(status.conditions, "Failed")
    assert [image.container_name for image in status.built_images] == ["logger"]
    assert status.message is not None
    assert "trainer: the kubelet of n1 answers 500: criu failed" in status.message
    assert lab.leftovers() == []


async def test_with_stop_pod_the_agent_leaves_the_last_phase_to_the_operator(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(stopPod=True)
    async with lab.agent() as agent:
        status = await lab.until(lambda status: status.phase == "ImagePushed", "all is pushed")
        await eventually(lab.events, bool, what="the run has ended")
        assert agent.unready_reasons() == []
        assert lab.leftovers() == []
    assert lab.cluster.phases == PHASES[:-1]
    assert len(status.built_images) == 1
    async with lab.agent() as next_agent:  # which does not take it up again
        await eventually(lambda: ready(next_agent), bool, what="the agent is ready")
    assert (await lab.status()).phase == "ImagePushed"
    assert len(lab.kubelet.calls) == 1


async def test_with_stop_pod_a_run_with_errors_is_never_taken_for_a_pushed_one(lab: AgentLab) -> None:
    await lab.start("trainer", "logger")
    await lab.begin(stopPod=True)
    lab.kubelet.script = [answers(500, "criu failed")]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "CompletedWithError"
    assert "ImagePushed" not in lab.cluster.phases


async def test_two_backups_of_one_pod_go_one_after_the_other_and_never_share_a_second(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin("first")
    await lab.begin("second")
    async with lab.agent():
        await lab.ended("first")
        await lab.ended("second")
    assert lab.kubelet.most_under_way == 1
    assert len({archive.name for archive in lab.kubelet.archives}) == 2
    assert len(await lab.pulled()) == 2


async def test_runs_of_other_nodes_and_of_the_application_are_left_alone(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin("elsewhere")
    await lab.begin_run("elsewhere", run=1, nodeName="n2")
    await lab.begin("by-the-sidecar")
    await lab.begin_run("by-the-sidecar", run=1, mode="application")
    await lab.begin("ours")
    async with lab.agent():
        await lab.ended("ours")
    assert (await lab.status("elsewhere")).phase is None
    assert (await lab.status("by-the-sidecar")).phase is None
    assert len(lab.kubelet.calls) == 1


async def test_an_agent_with_nothing_to_do_writes_nothing(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    async with lab.agent():
        await lab.ended()
    lab.cluster.patches.clear()
    async with lab.agent() as agent:
        await eventually(lambda: ready(agent), bool, what="the agent is ready")
    assert lab.cluster.patches == []


async def ready(agent: CheckpointAgent) -> bool:
    return not agent.unready_reasons()


async def test_metrics_count_runs_seconds_and_bytes(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    registry = CollectorRegistry()
    async with lab.agent(metrics=AgentMetrics(registry)):
        status = await lab.ended()
        await eventually(lab.events, bool, what="the run has ended")
    labels = {"mode": "container", "result": "Completed"}
    assert registry.get_sample_value("holdfast_node_runs_total", labels) == 1
    assert registry.get_sample_value("holdfast_node_pushed_bytes_total") == status.bytes > 100_000
    assert registry.get_sample_value("holdfast_node_frozen_seconds_count") == 1
    assert registry.get_sample_value("holdfast_node_push_seconds_count") == 1
    assert registry.get_sample_value("holdfast_node_kubelet_calls_total", {"outcome": "200"}) == 1
