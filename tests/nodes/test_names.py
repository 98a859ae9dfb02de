"""The names of workers, as real DNS answers them: by the Service of their job, and by that of their namespace."""

from collections.abc import Iterator

import pytest

from holdfast.pods.template import Discovery
from tests.nodes.jobs import WITHIN_S, ended, training_job
from tests.nodes.lab import Lab
from tests.nodes.manifests import container, pod
from tests.nodes.operated import operator
from tests.nodes.user import until_phase
from tests.operator.user import apply

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def lab(real_nodes: None) -> Iterator[Lab]:
    with Lab().running() as lab:
        yield lab


@pytest.mark.parametrize(("discovery", "below"), [("job", "named-headless"), ("namespace", "holdfast-workers")])
async def test_workers_find_each_other_and_worker_0_has_a_second_name(
    lab: Lab, namespace: str, discovery: Discovery, below: str
) -> None:
    first, second = (f"{name}.{namespace}.svc" for name in ("named-master", f"named-training-0.{below}"))
    ask = f"from socket import gethostbyname as of; assert of('{first}') == of('{second}')"
    asker = container("asker", f'until python -c "{ask}"; do sleep 0.2; done')
    with operator(lab, f"--discovery={discovery}"):
        await apply(lab.plane, namespace, training_job("named", gpusPerWorker=0))
        await apply(lab.plane, namespace, pod("asker", asker))
        await until_phase(lab.plane, namespace, "asker", "Succeeded", within_s=WITHIN_S)
        told = await ended(lab, namespace, "named")
    assert (told["state"], told.get("restartCount", 0)) == ("Completed", 0)
