"""A join while the cloud or the cluster can't be asked, and one whose settings are taken away meanwhile."""

import asyncio
from typing import TypeVar

import pytest

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import ClusterError, Forbidden, NotLeading, ServerError
from holdfast.cluster.protocol import DELETE, Body, DeleteOptions, Resource
from holdfast.cluster.resources import CONFIG_MAPS, SECRETS
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.machines.joining import JoinFailed, JoinStep
from holdfast.providers.errors import CloudUnauthorized, ProviderError, RateLimited
from tests.local.controllers.crashing import CrashingCluster
from tests.machines.join_bench import JoinBench, join_bench, now
from tests.machines.light_machine import Fault
from tests.runtime.virtual import settled, virtual

T = TypeVar("T", bound=Object)


class RefusingCluster(CrashingCluster):
    """Refuses writes of Secrets as long as `error` says so."""

    def __init__(self, cluster: EmbeddedCluster, *, creates: ClusterError | None, deletes: ClusterError | None) -> None:
        super().__init__(cluster, at=1000, after=False)
        self.creates = creates
        self.deletes = deletes

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        if self.creates is not None and namespace == "kube-system":
            raise self.creates
        return await super().create(resource, body, namespace=namespace)

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        if self.deletes is not None and key.namespace == "kube-system":
            raise self.deletes
        await super().delete(resource, key, options)


class Cloud:
    """Answers with each error once, and then as it should."""

    def __init__(self, bench: JoinBench, *errors: ProviderError) -> None:
        self._bench = bench
        self._errors = list(errors)
        self.asked_at: list[float] = []

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return await self._bench.host_keys(zone, name)


@virtual
async def test_a_cloud_that_can_not_be_asked_is_asked_again_when_it_wants_to() -> None:
    async with join_bench() as bench:
        await bench.boot()
        cloud = Cloud(
            bench, CloudUnauthorized("compute.instances.getGuestAttributes"), RateLimited("", retry_after_s=42.0)
        )

        await bench.join(cloud=cloud)

        assert cloud.asked_at[2] - cloud.asked_at[1] == 42.0
        assert "compute.instances.getGuestAttributes" in bench.progress[1].message


@virtual
async def test_a_token_that_can_not_be_made_now_is_made_later() -> None:
    async with join_bench() as bench:
        await bench.boot()
        cluster = RefusingCluster(bench.embedded, creates=ServerError("etcd is busy"), deletes=None)
        joining = asyncio.create_task(bench.join(bench.new_joiner(cluster)))
        await asyncio.sleep(60)
        assert bench.progress[-1].message == "running kubeadm join: etcd is busy"

        cluster.creates = None
        await joining

        assert (await bench.node()).is_ready


@virtual
async def test_a_right_that_is_missing_is_the_last_word_of_the_step() -> None:
    async with join_bench() as bench:
        await bench.boot()
        cluster = RefusingCluster(bench.embedded, creates=Forbidden("secrets is forbidden"), deletes=None)

        with pytest.raises(JoinFailed, match="running kubeadm join: secrets is forbidden; its time was over") as failed:
            await bench.join(bench.new_joiner(cluster))

        assert failed.value.step == JoinStep.KUBEADM


@virtual
async def test_a_machine_has_joined_though_its_token_is_still_to_be_revoked() -> None:
    async with join_bench() as bench:
        await bench.boot()

        await bench.join(bench.new_joiner(RefusingCluster(bench.embedded, creates=None, deletes=ServerError("no"))))

        assert await bench.has_token()
        await bench.joiner.revoke(bench.target.uid)
        assert not await bench.has_token()


@virtual
async def test_who_leads_no_longer_stops_at_once() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()
        begun = now()

        with pytest.raises(NotLeading):
            await bench.join(bench.new_joiner(CrashingCluster(bench.embedded, 1, after=False)))

        assert now() == begun
        await settled()
        assert machine.inputs == []
        assert machine.connections == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", [1, 2])
def test_an_operator_that_dies_at_a_write_is_followed_by_one_that_ends_the_join(write: int, after: bool) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            machine = await bench.boot()
            dying = bench.new_joiner(CrashingCluster(bench.embedded, write, after=after))
            await asyncio.wait([asyncio.create_task(bench.join(dying))])

            await bench.join(bench.new_joiner())

            assert len(machine.inputs) == 1
            assert (await bench.node()).is_ready
            assert not await bench.has_token()

    join()


@virtual
async def test_a_cluster_that_publishes_nothing_any_more_is_the_last_word_of_the_step() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()
        await bench.cluster.delete(CONFIG_MAPS, Key("kube-public", "cluster-info"))

        with pytest.raises(JoinFailed, match="there is no ConfigMap kube-public/cluster-info"):
            await bench.join()

        assert machine.inputs == []


@virtual
async def test_an_operator_without_its_root_key_has_another_key_than_the_machine_was_made_with() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()
        await bench.cluster.delete(SECRETS, Key("holdfast-system", "holdfast-machine-keys"))
        await bench.secret("holdfast-system", "holdfast-machine-keys", root_key="another root key of 32 bytes, ok")

        with pytest.raises(JoinFailed, match="does not take the key of user holdfast"):
            await bench.join(bench.new_joiner())

        assert machine.commands == []


@virtual
async def test_a_machine_that_loses_its_power_amid_kubeadm_fails_in_its_time() -> None:
    async with join_bench() as bench:
        machine = await bench.boot(Fault.KUBEADM_HANGS)
        joining = asyncio.create_task(bench.join())
        await machine.kubeadm_began.wait()

        await bench.machines.power_off(bench.target.node_name)

        with pytest.raises(JoinFailed, match="running kubeadm join: 127"):
            await joining
        assert not await bench.has_token()
