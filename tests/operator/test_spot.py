"""The manifests of users on the real API server, with the operator's own rights: from apply to success."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.local.registry.server import serve_registry
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import StartOperator
from tests.operator.deployed import deployed
from tests.operator.replicas import power_off, replicas
from tests.operator.spot import SpotStory, spot_story
from tests.operator.spot_deaths import METHODS, Choose, DyingOperator, each_call, each_method
from tests.operator.user import kubectl

pytestmark = pytest.mark.usefixtures("spot_machines")


@pytest.fixture(scope="module")
def operator_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator") as found:
        yield found


@pytest.fixture
async def story(operator_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[SpotStory]:
    async with serve_registry(tmp_path / "registry") as registry, spot_story(operator_plane, namespace, registry) as it:
        yield it


async def test_the_manifests_go_from_apply_over_a_preemption_to_success(
    story: SpotStory, start_operator: StartOperator, tmp_path: Path
) -> None:
    await asyncio.to_thread(story.start, start_operator)
    async with replicas(story, tmp_path) as running:
        await story.submit()
        first, survivor = await asyncio.gather(running.train(0, 0), running.train(1, 0))
        assert story.cloud.count("instances.insert") == len(await story.nodes()) == 2
        story.cloud.preempt(await story.machine_of(0))
        await power_off(first)
        restored = await running.train(0, 1)
        (saved,) = survivor.checkpoint_dir.glob("*/model.bin")
        assert (restored.resume_from / "model.bin").read_bytes() == saved.read_bytes()
        status = await story.until_phase("Running")
        (recovery,) = status["recoveries"]
        assert (recovery["replica"], recovery["cause"], recovery["source"]) == (0, "preemption", "survivor")
        assert recovery["image"] == status["lastCheckpointImage"]
        assert await story.tokens() == []
        await story.end(1)
    status = await story.until_phase("Succeeded")
    await story.until_nothing_is_left()
    assert status["restarts"] == {"preemption": 1}
    assert len(story.cloud.made) == story.cloud.count("instances.insert") == 3
    events = await kubectl(story.plane, "get", "events", "-n", story.namespace)
    assert "forbidden" not in events.lower()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("deaths", "least"), [(each_method, 2 * len(METHODS)), pytest.param(each_call, 24, marks=pytest.mark.long)]
)
async def test_an_operator_that_is_killed_around_its_calls_of_the_cloud_makes_no_machine_twice_and_leaks_none(
    story: SpotStory, start_operator: StartOperator, deaths: Choose, least: int
) -> None:
    """Each of its calls is a moment: before it, nothing was asked for; after it, the answer is lost."""
    operator = DyingOperator(story, await asyncio.to_thread(story.start, start_operator, "--no-leader-elect"), deaths)
    await story.submit()
    await story.until_phase("Running")
    for machine in [await story.machine_of(replica) for replica in (0, 1)]:
        story.cloud.preempt(machine)
    status = await story.until_attempts(1)
    await story.end(0)
    await story.until_phase("Succeeded")
    await story.until_nothing_is_left()
    assert len(operator.died_at) >= least, operator.died_at
    assert max(Counter(machine.name for machine in story.cloud.made).values()) == 1
    assert len(story.cloud.made) == 4, "one for each attempt"
    assert [each["machineTry"] for each in status["jobStatuses"]] == [1, 1]
    assert status["restarts"] == {"preemption": 2}
