"""The double does what is known of Compute Engine, so that what holds here has a chance there."""

import asyncio

import msgspec
import pytest

from holdfast.providers.gcp.http import HttpRequest
from holdfast.providers.gcp.instance import MachineType, insert_body
from holdfast.providers.protocol import MachineSpec
from tests.providers.compute_engine.calls import ConnectionLost, RateLimit
from tests.providers.compute_engine.client import client
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.faults import lost, rate_limited, refusing, unavailable_though_done
from tests.providers.compute_engine.refusals import OperationFailure, unavailable
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import NAME, SPEC, UID, ZONE, another, lab, now, spec
from tests.runtime.virtual import now_s, virtual

INSTANCES = f"zones/{ZONE}/instances"
OTHER_ID = "22222222-0000-4000-8000-000000000000"


@virtual
async def test_a_repeated_request_gets_the_first_operation() -> None:
    async with client() as it:
        first = await it.insert(request_id=UID)
        again = await it.insert(request_id=UID)
        assert again.content["name"] == first.content["name"]
        assert len(it.cloud.made) == 1
        await it.wait(first)
        done = await it.insert(request_id=UID)
        assert (done.content["name"], done.content["status"]) == (first.content["name"], "DONE")
        deleted = await it.ask("DELETE", f"{INSTANCES}/{NAME}", requestId=OTHER_ID)
        await it.wait(deleted)
        assert (await it.insert(request_id=UID)).content["name"] == first.content["name"], "though it is gone"
        assert (await it.ask("DELETE", f"{INSTANCES}/{NAME}", requestId=OTHER_ID)).content["status"] == "DONE"


@virtual
async def test_a_taken_name_is_a_conflict() -> None:
    async with client() as it:
        await it.insert(request_id=UID)
        refused = await it.insert(request_id=OTHER_ID)
        assert (refused.status, refused.reason) == (409, "alreadyExists")
        assert (await it.insert()).status == 409


@virtual
async def test_a_machine_is_seen_before_its_insert_has_failed() -> None:
    async with client() as it:
        it.cloud.faults.fail_operation("insert", OperationFailure("INTERNAL_ERROR", "Internal error."))
        operation = await it.insert()
        assert operation.content["status"] == "RUNNING"
        assert (await it.ask("GET", f"{INSTANCES}/{NAME}")).content["status"] == "PROVISIONING"
        done = await it.wait(operation)
        assert done.content["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
        assert (await it.ask("GET", f"{INSTANCES}/{NAME}")).status == 404


@virtual
async def test_the_states_of_a_machine_that_is_made() -> None:
    async with client() as it:
        operation = await it.insert()
        machine = it.cloud.machine(NAME)
        assert machine.status == "PROVISIONING"
        await it.wait(operation)
        assert (machine.status, machine.power) == ("STAGING", "off")
        await asyncio.sleep(it.cloud.pace.start_s)
        assert (machine.status, machine.power) == ("RUNNING", "on")


@virtual
async def test_a_wait_answers_after_two_minutes_at_most_and_earlier_when_set() -> None:
    async with client() as it:
        machine = await it.machine()
        stuck = it.cloud.operation("update", machine, user="somebody")
        path = f"zones/{ZONE}/operations/{stuck.name}/wait"
        began_s = now_s()
        assert (await it.ask("POST", path)).content["status"] == "RUNNING"
        assert now_s() - began_s == 120.0
        it.cloud.wait_answers_after_s = 0.0
        assert (await it.ask("POST", path)).content["status"] == "RUNNING"
        assert now_s() - began_s == 120.0


@virtual
async def test_a_machine_is_listed_while_it_is_deleted_and_can_not_be_deleted_again() -> None:
    async with client() as it:
        machine = await it.machine()
        operation = await it.ask("DELETE", f"{INSTANCES}/{NAME}")
        await asyncio.sleep(1.0)
        assert machine.status == "STOPPING"
        assert (await it.ask("GET", f"{INSTANCES}/{NAME}")).status == 200
        listed = await it.ask("GET", "aggregated/instances")
        assert listed.content["items"][f"zones/{ZONE}"]["instances"][0]["status"] == "STOPPING"
        assert (await it.ask("DELETE", f"{INSTANCES}/{NAME}")).status == 404
        assert (await it.wait(operation)).content["status"] == "DONE"
        assert (await it.ask("GET", f"{INSTANCES}/{NAME}")).status == 404


@virtual
async def test_zones_without_a_machine_have_a_warning_and_those_that_do_not_answer_are_named() -> None:
    async with client() as it:
        await it.machine()
        full = (await it.ask("GET", "aggregated/instances")).content
        assert full["items"]["zones/us-east1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
        assert "unreachables" not in full
        it.cloud.unreachable.add("us-east1-b")
        assert (await it.ask("GET", "aggregated/instances")).status == 503
        partial = (await it.ask("GET", "aggregated/instances", returnPartialSuccess="true")).content
        assert partial["unreachables"] == ["projects/my-gcp-project/zones/us-east1-b"]
        assert (await it.ask("GET", "zones/us-east1-b/instances/m")).status == 503
        assert (await it.ask("GET", "zones/us-east1-c/instances/m")).status == 404


@virtual
async def test_pages_are_bounded_and_filters_are_applied_before_them() -> None:
    async with client() as it:
        for number in range(5):
            await it.insert(another(number, job="a" if number % 2 else "b"))
        it.cloud.page_size = 2
        found, token = [], ""
        while True:
            query = "labels.holdfast-job = b"
            page = (await it.ask("GET", "aggregated/instances", filter=query, pageToken=token)).content
            found += [one["name"] for one in page["items"][f"zones/{ZONE}"].get("instances", ())]
            token = page.get("nextPageToken", "")
            if not token:
                break
        assert found == [another(number).name for number in (0, 2, 4)]
        assert (await it.ask("GET", "aggregated/instances", filter="name >")).status == 400


@virtual
async def test_a_rate_limit_counts_the_calls_of_a_time() -> None:
    async with client() as it:
        it.cloud.rate_limit = RateLimit(2, 60.0, retry_after_s=30)
        replies = [await it.ask("GET", "zones") for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 403]
        assert replies[2].reason == "rateLimitExceeded"
        await asyncio.sleep(61.0)
        assert (await it.ask("GET", "zones")).status == 200


@virtual
async def test_faults_come_one_for_each_call() -> None:
    async with client() as it:
        it.cloud.faults.add("zones.list", rate_limited(5), refusing(unavailable()), lost(executed=False))
        assert (await it.ask("GET", "zones")).status == 403
        assert (await it.ask("GET", "zones")).status == 503
        with pytest.raises(ConnectionLost):
            await it.ask("GET", "zones")
        assert (await it.ask("GET", "zones")).status == 200
        it.cloud.faults.add("instances.insert", unavailable_though_done())
        assert (await it.insert()).status == 503
        assert it.cloud.machine(NAME)


@virtual
async def test_every_call_is_recorded() -> None:
    async with client() as it:
        await it.insert(request_id=UID)
        await it.ask("GET", f"{INSTANCES}/x")
        first, second = it.cloud.calls
        assert (first.number, first.method, first.zone, first.target) == (0, "instances.insert", ZONE, NAME)
        assert (first.request_id, first.status, first.account) == (UID, 200, it.account.email)
        assert (second.method, second.target, second.status) == ("instances.get", "x", 404)
        assert it.cloud.count() == 2
        assert it.cloud.count("instances.insert", zone=ZONE, target=NAME) == 1
        assert it.cloud.count(zone="us-east1-b") == 0
        assert it.cloud.counts() == {"instances.insert": 1, "instances.get": 1}


@virtual
async def test_a_watch_sees_each_call_before_and_after_it_is_carried_out() -> None:
    async with client() as it:
        seen: list[tuple[str, str, int]] = []

        async def before(call: object) -> None:
            seen.append(("before", it.cloud.calls[-1].method, len(it.cloud.made)))

        async def after(call: object) -> None:
            seen.append(("after", it.cloud.calls[-1].method, len(it.cloud.made)))

        it.cloud.before_call, it.cloud.after_call = before, after
        await it.insert()
        assert seen == [("before", "instances.insert", 0), ("after", "instances.insert", 1)]


@virtual
async def test_a_request_that_google_would_not_understand_fails_the_test_at_its_end() -> None:
    cloud = ComputeEngine(now=now)
    account = cloud.add_account()
    async with client() as it:
        it.cloud, it.account = cloud, account
        assert (await it.ask("POST", INSTANCES, {"name": "m", "machinetype": "n1"})).status == 400
        assert (await it.ask("GET", "aggregated/instances", fields="item")).status == 400
        assert (await it.ask("GET", "nowhere")).status == 404
    with pytest.raises(AssertionError, match="machinetype: there is no such field") as caught:
        await cloud.close()
    assert "fields/item: there is no such field" in str(caught.value)
    assert "projects/my-gcp-project/nowhere: there is no such method" in str(caught.value)


@virtual
async def test_what_is_no_json_is_refused() -> None:
    async with client() as it:
        await it.ask("GET", "zones")
        response = await it.cloud.answer(
            HttpRequest(
                method="POST",
                url=f"{it.cloud.origin}/compute/v1/projects/my-gcp-project/{INSTANCES}",
                headers={"Authorization": f"Bearer {it.token}"},
                body=b"{",
            )
        )
        assert response.status == 400
        assert msgspec.json.decode(response.body)["error"]["message"] == "Parse Error"


@virtual
async def test_an_unknown_project_is_not_found() -> None:
    async with client() as it:
        it.cloud.projects = {"another"}
        assert (await it.ask("GET", "zones")).status == 404


@virtual
async def test_a_client_that_gives_up_on_a_request_does_not_stop_it() -> None:
    async with lab() as it:
        begun = asyncio.Event()

        async def before(call: object) -> None:
            begun.set()
            await asyncio.sleep(1.0)

        it.cloud.before_call = before
        http = InProcess(it.cloud)
        asking = asyncio.create_task(
            http.send(HttpRequest(method="GET", url=f"{it.cloud.origin}/compute/v1/projects/my-gcp-project/zones"))
        )
        await begun.wait()
        asking.cancel()
        await asyncio.sleep(2.0)
        assert [call.status for call in it.cloud.calls] == [401], "it had no token, and was answered"


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (spec(image="cos 109"), "resource.disks[0].initializeParams.sourceImage"),
        (spec(job="x", cluster_uid="NOT-LOWER"), "resource.labels"),
    ],
)
def test_what_the_description_does_not_say_is_refused_as_well(wanted: MachineSpec, field: str) -> None:
    @virtual
    async def run() -> None:
        async with client() as it:
            refused = await it.insert(wanted)
            assert refused.status == 400
            assert f"'{field}'" in refused.content["error"]["message"]

    run()


@pytest.mark.parametrize(
    ("scheduling", "words"),
    [
        ({"provisioningModel": "STANDARD", "instanceTerminationAction": "DELETE"}, "termination action"),
        ({"provisioningModel": "SPOT", "automaticRestart": True}, "restart automatically"),
        ({"provisioningModel": "STANDARD", "preemptionNoticeDuration": {"seconds": "60"}}, "only for Spot VMs"),
        ({"provisioningModel": "STANDARD", "automaticRestart": False}, "do not support live migration"),
    ],
)
def test_scheduling_that_makes_no_sense_is_refused(scheduling: dict[str, object], words: str) -> None:
    @virtual
    async def run() -> None:
        async with client() as it:
            body = {**insert_body(SPEC, "my-gcp-project", MachineType()), "scheduling": scheduling}
            refused = await it.ask("POST", INSTANCES, body)
            assert refused.status == 400
            assert words in refused.content["error"]["message"]

    run()
