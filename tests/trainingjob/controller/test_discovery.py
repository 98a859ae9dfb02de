"""How workers find each other: through a Service of their job, or through one of their namespace."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import Struct, structs

from holdfast.api.core.objects import Service
from holdfast.api.meta import Object
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import SERVICES
from holdfast.pods.template import Discovery
from tests.contract.kinds import PODS, resource
from tests.contract.pool import Pool
from tests.contract.waiting import found, gone, listed, until
from tests.controllers.lab import seen_as
from tests.controllers.operating import DEFAULTS
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.requests import RecordingCluster

SHARED = "holdfast-workers"


class Endpoint(Struct, frozen=True):
    hostname: str = ""


class EndpointSlice(Object, frozen=True, kw_only=True):
    endpoints: tuple[Endpoint, ...] = ()


SLICES = seen_as(EndpointSlice, resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))


@asynccontextmanager
async def told(lab: TrainingJobLab, discovery: Discovery) -> AsyncIterator[RecordingCluster]:
    """What an operator asks that was started with this option."""
    recording = RecordingCluster(lab.cluster)
    async with operating(recording.cluster, lab.namespace, defaults=structs.replace(DEFAULTS, discovery=discovery)):
        yield recording


async def service(lab: TrainingJobLab, name: str) -> Service:
    return await lab.cluster.get(SERVICES, lab.key(name))


async def templates(lab: TrainingJobLab, job: str) -> set[tuple[str, str]]:
    """Below which Service the workers of a Job have their names, and which worker they are told to meet."""
    pods = (await lab.cluster.list(PODS, namespace=lab.namespace, labels=f"batch.kubernetes.io/job-name={job}")).items
    return {(pod.spec["subdomain"], _master(pod.spec)) for pod in pods}


def _master(spec: JSON) -> str:
    (address,) = (each["value"] for each in spec["containers"][0]["env"] if each["name"] == "MASTER_ADDR")
    return str(address)


@pytest.mark.every_engine
async def test_one_service_is_made_for_all_jobs_of_the_namespace(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    async with told(lab, "namespace") as recording:
        for name in ("bert", "gpt"):
            await lab.submit(name)
            await lab.until_state("Running", name)
    made = [
        target for verb, plural, target in recording.writes_but_status() if (verb, plural) == ("create", "services")
    ]
    assert sorted(made) == ["bert-headless", "bert-master", "gpt-headless", "gpt-master", SHARED]
    assert await templates(lab, "bert-training") == {(SHARED, f"bert-training-0.{SHARED}.{lab.namespace}.svc")}
    assert (await service(lab, "bert-headless")).spec.selector == {}
    master = (await service(lab, "gpt-master")).spec
    assert (master.type, master.external_name) == (
        "ExternalName",
        f"gpt-training-0.{SHARED}.{lab.namespace}.svc.cluster.local",
    )


# Only a real cluster has what DNS answers from.
@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
@pytest.mark.parametrize(("discovery", "name"), [("job", "bert-headless"), ("namespace", SHARED)])
@pytest.mark.every_engine
async def test_the_workers_names_are_those_that_they_are_told(
    lab: TrainingJobLab, pool: Pool, discovery: Discovery, name: str
) -> None:
    hosts = {"bert-training-0", "bert-training-1"}
    await pool.add()
    async with told(lab, discovery):
        await lab.submit()
        await lab.until_state("Running")
        await listed(
            lab.cluster,
            SLICES,
            lab.namespace,
            lambda items: {each.hostname for every in items for each in every.endpoints} == hosts,
            "both workers have their names",
            labels=f"kubernetes.io/service-name={name}",
        )


@pytest.mark.parametrize(("before", "after"), [("job", "namespace"), ("namespace", "job")])
@pytest.mark.every_engine
async def test_another_discovery_leaves_an_attempt_alone_and_is_for_the_next_one(
    lab: TrainingJobLab, pool: Pool, before: Discovery, after: Discovery
) -> None:
    subdomains = {"job": "bert-headless", "namespace": SHARED}
    await pool.add()
    async with told(lab, before):
        await lab.submit()
        await lab.until_state("Running")
    kept = await pool.running(2)
    forms = [await service(lab, name) for name in ("bert-headless", "bert-master")]
    async with told(lab, after) as recording:
        await lab.submit("other")
        await lab.until_state("Running", "other")
        await lab.patch(failurePolicy={"backoffLimit": 9})  # is looked at again
        await lab.until(lambda job: job.status.observed_generation == 2, "is looked at")
        assert [each for each in recording.writes_but_status() if each[2].startswith("bert")] == []
        assert [await service(lab, name) for name in ("bert-headless", "bert-master")] == forms
        worker, _ = await pool.running(2, job="bert-training")
        assert worker.metadata.uid == kept[0].metadata.uid
        assert {each for each, _ in await templates(lab, "bert-training")} == {subdomains[before]}
        await pool.end(worker, exit_code=1)
        await lab.until_state("Running", attempt=1)
    host = f"bert-training-1-0.{subdomains[after]}.{lab.namespace}.svc"
    assert await templates(lab, "bert-training-1") == {(subdomains[after], host)}
    assert bool((await service(lab, "bert-headless")).spec.selector) is (after == "job")
    assert (await service(lab, "bert-master")).spec.external_name == f"{host}.cluster.local"


async def test_suspended_and_resumed_under_another_discovery_it_goes_on_as_it_was_made(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    async with told(lab, "namespace"):
        await lab.submit()
        await lab.until_state("Running")
    async with told(lab, "job"):
        await lab.patch(suspend=True)
        await lab.until_state("Suspended")
        await lab.patch(suspend=False)
        await pool.running(2)
        await lab.until_state("Running")
    assert {each for each, _ in await templates(lab, "bert-training")} == {SHARED}
    assert (await service(lab, "bert-headless")).spec.selector == {}


@pytest.mark.parametrize("name", [SHARED, "bert-headless", "bert-master"])
async def test_a_service_that_somebody_deletes_is_made_again_as_the_attempt_needs_it(
    lab: TrainingJobLab, pool: Pool, name: str
) -> None:
    await pool.add()
    async with told(lab, "namespace"):
        await lab.submit()
        await lab.until_state("Running")
    before = await service(lab, name)
    async with told(lab, "job"):
        await lab.cluster.delete(SERVICES, lab.key(name))
        again = await until(lab.cluster, SERVICES, lab.key(name), bool, "is made again")
    assert again.metadata.uid != before.metadata.uid
    assert (again.spec, again.metadata.labels) == (before.spec, before.metadata.labels)


@pytest.mark.every_engine
async def test_the_shared_service_outlives_the_jobs_and_one_of_somebody_else_is_never_adopted(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    foreign: JSON = {"metadata": {"name": SHARED}, "spec": {"clusterIP": "None", "selector": {"app": "mine"}}}
    mine = await lab.cluster.create(SERVICES, foreign, namespace=lab.namespace)
    async with told(lab, "namespace"):
        await lab.submit()
        waiting = await lab.until(lambda job: SHARED in job.message, "says so")
        assert waiting.status.state == "Pending"
        assert "was not made by holdfast" in waiting.message
        assert await service(lab, SHARED) == mine
        await lab.cluster.delete(SERVICES, lab.key(SHARED))
        await lab.patch(failurePolicy={"backoffLimit": 9})  # is looked at again
        await lab.until_state("Running")
        shared = await service(lab, SHARED)
        await lab.delete()
        await gone(lab.cluster, SERVICES, lab.key("bert-master"))
        assert await found(lab.cluster, SERVICES, lab.key(SHARED)) == shared


@pytest.mark.every_engine
async def test_a_shared_service_that_has_lost_its_selector_is_mended_and_not_made_anew(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    async with told(lab, "namespace"):
        await lab.submit()
        await lab.until_state("Running")
        await lab.delete()
        await gone(lab.cluster, SERVICES, lab.key("bert-master"))
    before = await service(lab, SHARED)
    await lab.cluster.patch(SERVICES, lab.key(SHARED), {"spec": {"selector": None}})
    async with told(lab, "namespace"):
        await lab.submit("other")
        await lab.until_state("Running", "other")
    after = await service(lab, SHARED)
    assert (after.metadata.uid, after.spec) == (before.metadata.uid, before.spec)


# A cluster with one family of addresses refuses to make that Service what it should be.
@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
@pytest.mark.every_engine
async def test_no_job_fails_because_of_a_shared_service_that_cannot_be_mended(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    labels = {"holdfast.dev/discovery": "namespace", "app.kubernetes.io/managed-by": "holdfast"}
    bare: JSON = {"metadata": {"name": SHARED, "labels": labels}, "spec": {"clusterIP": "None"}}
    await lab.cluster.create(SERVICES, bare, namespace=lab.namespace)
    async with told(lab, "namespace"):
        await lab.submit()
        waiting = await lab.until(lambda job: SHARED in job.message, "says so")
        assert waiting.status.state == "Pending"
        await lab.cluster.delete(SERVICES, lab.key(SHARED))
        await lab.until_state("Running")


def as_it_was(lab: TrainingJobLab, master: Service) -> JSON:
    """The Service in front of worker 0 as earlier versions made it."""
    owner = master.metadata.owner_references[0]
    selector = {"batch.kubernetes.io/job-name": "bert-training", "batch.kubernetes.io/job-completion-index": "0"}
    return {
        "metadata": {
            "name": "bert-master",
            "labels": master.metadata.labels,
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": {"selector": selector, "ports": [{"name": "master", "port": 29500}]},
    }


async def resolves_as_it_did(lab: TrainingJobLab, before: Service) -> None:
    now = await service(lab, "bert-master")
    assert (now.metadata.uid, now.spec) == (before.metadata.uid, before.spec)


@pytest.mark.every_engine
async def test_a_master_with_an_address_keeps_it_until_the_next_attempt(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    async with told(lab, "job"):
        await lab.submit()
        await lab.until_state("Running")
    body = as_it_was(lab, await service(lab, "bert-master"))
    await lab.cluster.delete(SERVICES, lab.key("bert-master"))
    before = await lab.cluster.create(SERVICES, body, namespace=lab.namespace)
    async with told(lab, "job"):
        await lab.patch(failurePolicy={"backoffLimit": 9})  # is looked at again
        await lab.until(lambda job: job.status.observed_generation == 2, "is looked at")
        await resolves_as_it_did(lab, before)
        await lab.patch(numWorkers=1)
        await lab.until_state("Running", attempt=1)
    after = await service(lab, "bert-master")
    assert (after.spec.type, after.spec.selector, after.spec.cluster_ip) == ("ExternalName", {}, "")
    assert after.spec.external_name == f"bert-training-1-0.bert-headless.{lab.namespace}.svc.cluster.local"


async def test_a_master_has_an_address_again_when_the_next_attempt_is_scraped(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    wish: dict[str, Any] = {"monitoring": {"enabled": True}}
    async with told(lab, "job"):
        await lab.submit()
        await lab.until_state("Running")
        await lab.patch(suspend=True)
        await lab.until(lambda job: job.message.startswith("spec.suspend is true"), "has stopped")
        await lab.patch(**wish, suspend=False)
        await lab.until_state("Running", attempt=1)
    spec = (await service(lab, "bert-master")).spec
    assert (spec.type, bool(spec.cluster_ip)) == ("ClusterIP", True)
    chosen = ",".join(f"{name}={value}" for name, value in spec.selector.items())
    behind = (await lab.cluster.list(PODS, namespace=lab.namespace, labels=chosen)).items
    assert [pod.spec["hostname"] for pod in behind] == ["bert-training-1-0"]
