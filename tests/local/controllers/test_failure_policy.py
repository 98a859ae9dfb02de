import pytest

from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.job_pods import match_policy
from tests.local.controllers.things import indexed_job, worker

DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def exits(operator: str, *codes: int, container: str = "") -> JSON:
    wanted: JSON = {"operator": operator, "values": list(codes)}
    return {"onExitCodes": wanted | ({"containerName": container} if container else {})}


@pytest.mark.parametrize(
    ("rules", "action"),
    [
        ([], "Count"),
        ([{"action": "FailJob", **exits("In", 42)}], "FailJob"),
        ([{"action": "FailJob", **exits("In", 1, 2)}], "Count"),
        ([{"action": "FailJob", **exits("NotIn", 1, 2)}], "FailJob"),
        ([{"action": "FailJob", **exits("NotIn", 42)}], "Count"),
        ([{"action": "FailJob", **exits("In", 42, container="main")}], "FailJob"),
        ([{"action": "FailJob", **exits("In", 42, container="sidecar")}], "Count"),
        ([{"action": "Ignore", "onPodConditions": [DISRUPTED]}], "Ignore"),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}], "Ignore"),
        ([{"action": "Ignore", "onPodConditions": [{**DISRUPTED, "status": "False"}]}], "Count"),
        ([{"action": "Ignore", "onPodConditions": [{"type": "Other"}, DISRUPTED]}], "Ignore"),
        ([{"action": "Ignore", **exits("In", 42)}, {"action": "FailJob", **exits("In", 42)}], "Ignore"),
        ([{"action": "Count", **exits("In", 42)}, {"action": "FailJob", **exits("In", 42)}], "Count"),
        ([{"action": "FailIndex", **exits("In", 42)}, {"action": "FailJob", **exits("In", 42)}], "FailJob"),
    ],
)
def test_the_first_rule_that_matches_decides(rules: list[JSON], action: str) -> None:
    pod = worker("Failed", index=0, exit_code=42, conditions={"DisruptionTarget": "True"})
    judgement = match_policy(indexed_job(1, podFailurePolicy={"rules": rules}), pod)
    assert judgement.action == action
    assert judgement.counts is (action != "Ignore")


def test_an_index_can_fail_only_where_indexes_fail_on_their_own() -> None:
    rules = {"rules": [{"action": "FailIndex", **exits("In", 42)}]}
    pod = worker("Failed", index=0, exit_code=42)
    assert match_policy(indexed_job(1, podFailurePolicy=rules, backoffLimitPerIndex=3), pod).action == "FailIndex"


def test_the_message_names_the_pod_and_what_matched() -> None:
    pod = worker("Failed", index=0, exit_code=42, conditions={"DisruptionTarget": "True"})
    where = f"ns/{pod.metadata.name}"
    by_code = indexed_job(1, podFailurePolicy={"rules": [{"action": "FailJob", **exits("In", 42)}]})
    expected = f"Container main for pod {where} failed with exit code 42 matching FailJob rule at index 0"
    assert match_policy(by_code, pod).message == expected
    rules = [{"action": "Count", **exits("In", 7)}, {"action": "FailJob", "onPodConditions": [DISRUPTED]}]
    by_condition = indexed_job(1, podFailurePolicy={"rules": rules})
    expected = f"Pod {where} has condition DisruptionTarget matching FailJob rule at index 1"
    assert match_policy(by_condition, pod).message == expected


def test_a_container_that_ended_well_matches_no_exit_code() -> None:
    pod = worker("Failed", index=0, exit_code=0)
    assert match_policy(
        indexed_job(1, podFailurePolicy={"rules": [{"action": "FailJob", **exits("NotIn", 5)}]}), pod
    ).counts
