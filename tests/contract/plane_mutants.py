"""Faults that the Job controller, the scheduler, the node lifecycle, claims and Deployments might have."""

from .mutant import Mutant

FOLDER = "holdfast/local/controllers"
CONSTRAINTS = "holdfast/scheduling/constraints.py"

JOBS = (
    Mutant(
        "Job: indexed",
        f"{FOLDER}/jobs.py",
        "spec = _with_index_env(spec) |",
        "spec = spec |",
        "test_jobs.py::test_each_index_gets_a_pod_that_knows_its_number",
    ),
    Mutant(
        "Job: indexed",
        f"{FOLDER}/job_pods.py",
        "return before | self._indexes_of(self.new_succeeded)",
        "return self._indexes_of(self.new_succeeded)",
        "test_jobs.py::test_a_job_is_complete_when_every_index_has_succeeded",
    ),
    Mutant(
        "Job: suspend",
        f"{FOLDER}/job_policies.py",
        "    if job.spec.suspend:\n",
        "    if job.spec.suspend and census.active:\n",
        "test_jobs.py::test_a_suspended_job_makes_no_pods",
    ),
    Mutant(
        "Job: suspend",
        f"{FOLDER}/jobs.py",
        "(*steps.release, *steps.surplus))\n",
        "steps.release)\n",
        "test_jobs.py::test_a_suspended_job_lets_go_of_its_pods_before_it_stops_them",
    ),
    Mutant(
        "Job: backoff",
        f"{FOLDER}/job_policies.py",
        "if census.failed > job.spec.backoff_limit or",
        "if census.failed >= job.spec.backoff_limit > 0 or",
        "test_job_failures.py::test_a_job_gives_up_when_its_backoff_limit_is_exceeded",
    ),
    Mutant(
        "Job: backoff",
        f"{FOLDER}/job_policies.py",
        "BASE_S = 10.0",
        "BASE_S = 5.0",
        "test_job_failures.py::test_a_failed_pod_is_replaced_after_a_pause",
    ),
    Mutant(
        "Job: backoff",
        f"{FOLDER}/job_policies.py",
        "fails = has_failed(pod, census.job) or (over is not None and not over.is_success)",
        "fails = has_failed(pod, census.job)",
        "test_job_failures.py::test_a_job_gives_up_when_its_backoff_limit_is_exceeded",
    ),
    Mutant(
        "Job: deadline",
        f"{FOLDER}/job_policies.py",
        "timedelta(seconds=limit_s)",
        "timedelta(milliseconds=limit_s)",
        "test_job_failures.py::test_a_job_past_its_deadline_fails_and_stops_its_pods",
    ),
    Mutant(
        "Job: deadline",
        f"{FOLDER}/jobs.py",
        "times = [staff.again_s, (due - now).total_seconds() if due else None]",
        "times = [staff.again_s, (due - now).total_seconds() + 3600 if due else None]",
        "test_job_failures.py::test_a_job_past_its_deadline_fails_and_stops_its_pods",
    ),
    Mutant(
        "Job: failure policy",
        f"{FOLDER}/job_pods.py",
        '== (wanted.operator == "In")',
        '== (wanted.operator != "In")',
        "test_job_failures.py::test_an_exit_code_can_fail_the_job_at_once",
    ),
    Mutant(
        "Job: failure policy",
        f"{FOLDER}/job_pods.py",
        "return self.action != IGNORE",
        "return bool(self.action)",
        "test_job_failures.py::test_a_disrupted_pod_is_replaced_without_counting",
    ),
    Mutant(
        "Job: TTL",
        f"{FOLDER}/storage.py",
        "timedelta(seconds=ttl_s)",
        "timedelta(seconds=0)",
        "test_jobs.py::test_a_finished_job_goes_after_its_time_and_no_earlier",
    ),
    Mutant(
        "Job: TTL",
        f"{FOLDER}/storage.py",
        "if left_s > 0:",
        "if left_s > -3600:",
        "test_jobs.py::test_a_finished_job_goes_after_its_time_and_no_earlier",
    ),
    Mutant(
        "Job: elastic resize",
        "holdfast/local/apiserver/builtin/jobs.py",
        'elif spec.get("completions") != spec.get("parallelism"):',
        'elif spec.get("completions"):',
        "test_jobs.py::test_an_indexed_job_can_grow_and_shrink",
    ),
    Mutant(
        "Job: elastic resize",
        f"{FOLDER}/job_policies.py",
        "    if surplus:\n",
        "    if surplus and not wanted:\n",
        "test_jobs.py::test_an_indexed_job_can_grow_and_shrink",
    ),
)

MACHINES = (
    Mutant(
        "resources",
        f"{FOLDER}/scheduler.py",
        "if amount > 0 and amount > parse_nanos(offered.get(name, 0)) - taken.get(name, 0):",
        "if not amount:",
        "test_scheduling.py::test_a_pod_goes_where_its_gpus_are_free",
    ),
    Mutant(
        "resources",
        f"{FOLDER}/scheduler.py",
        "parse_nanos(offered.get(name, 0)) - taken.get(name, 0):",
        "parse_nanos(offered.get(name, 0)):",
        "test_scheduling.py::test_gpus_are_counted_per_pod_and_freed_by_its_end",
    ),
    Mutant(
        "selectors",
        CONSTRAINTS,
        "return selected and (required",
        "return (required",
        "test_scheduling.py::test_a_node_selector_and_a_required_affinity_are_obeyed",
    ),
    Mutant(
        "affinity",
        CONSTRAINTS,
        "return selected and (required is None or required.matches(labels, name))",
        "return selected",
        "test_scheduling.py::test_a_node_selector_and_a_required_affinity_are_obeyed",
    ),
    Mutant(
        "affinity",
        f"{FOLDER}/node_snapshot.py",
        "required_topologies=_required_topologies(pod, near, occupancy, nodes),",
        "required_topologies=(),",
        "test_scheduling.py::test_a_pod_that_wants_company_goes_to_it",
    ),
    Mutant(
        "taints",
        CONSTRAINTS,
        'if taint.effect in ("NoSchedule", "NoExecute") and',
        'if taint.effect == "NoExecute" and',
        "test_scheduling.py::test_a_tainted_machine_takes_only_pods_that_tolerate_it",
    ),
    Mutant(
        "taints",
        CONSTRAINTS,
        "return bool(toleration.key) and toleration.value == taint.value",
        "return bool(toleration.key)",
        "test_scheduling.py::test_a_tainted_machine_takes_only_pods_that_tolerate_it",
    ),
    Mutant(
        "anti-affinity",
        f"{FOLDER}/node_snapshot.py",
        "for term in away for value in _places(term, pod, occupancy, nodes)",
        "for term in away for value in ()",
        "test_scheduling.py::test_a_pod_keeps_away_from_pods_that_it_avoids_and_from_pods_that_avoid_it",
    ),
    Mutant(
        "anti-affinity",
        f"{FOLDER}/node_snapshot.py",
        "rejected_by_others=frozenset(_rejected_domains(pod, occupancy.pods_with_anti_affinity(), nodes)),",
        "rejected_by_others=frozenset(),",
        "test_scheduling.py::test_a_pod_keeps_away_from_pods_that_it_avoids_and_from_pods_that_avoid_it",
    ),
    Mutant(
        "priority",
        f"{FOLDER}/scheduler.py",
        "return -pod.spec.priority, pod",
        "return 0, pod",
        "test_scheduling.py::test_the_most_important_of_those_that_wait_goes_first",
    ),
    Mutant(
        "node taints",
        f"{FOLDER}/nodes.py",
        '            yield lost, "NoExecute"\n',
        '            yield lost, "NoSchedule"\n',
        "test_nodes.py::test_a_machine_that_is_not_ready_is_tainted_and_loses_its_pods",
    ),
    Mutant(
        "eviction",
        f"{FOLDER}/nodes.py",
        "timedelta(seconds=max(0, toleration.toleration_seconds))",
        "timedelta(seconds=0)",
        "test_nodes.py::test_a_machine_that_is_not_ready_is_tainted_and_loses_its_pods",
    ),
    Mutant(
        "eviction",
        f"{FOLDER}/nodes.py",
        "conditions = disrupted(pod, *cause, now)",
        "conditions = pod.status.conditions",
        "test_nodes.py::test_a_machine_that_is_not_ready_is_tainted_and_loses_its_pods",
    ),
    Mutant(
        "eviction",
        "holdfast/local/apiserver/builtin/pods.py",
        "DEFAULT_TOLERATION_S = 300",
        "DEFAULT_TOLERATION_S = 30",
        "test_nodes.py::test_a_pod_tolerates_a_lost_machine_for_five_minutes_unless_it_says_otherwise",
    ),
)

BESIDE = (
    Mutant(
        "Job: replacement",
        f"{FOLDER}/objects.py",
        'return self.spec.pod_replacement_policy == "Failed" or',
        "return",
        "test_job_failures.py::test_a_deleted_pod_keeps_its_place_until_it_has_ended",
    ),
    Mutant(
        "Job: end of an attempt",
        f"{FOLDER}/jobs.py",
        "settled = not (status.active or status.terminating or census.tracked or",
        "settled = not (",
        "test_job_failures.py::test_an_attempt_fails_as_a_whole_and_only_when_all_its_pods_have_ended",
    ),
    Mutant(
        "Job: suspend",
        f"{FOLDER}/jobs.py",
        "        await self._remove_finalizers(key, session, (*steps.release, *steps.surplus))\n"
        "        await gather_all(self._stop(pod, session) for pod in (*steps.stop, *steps.surplus))\n",
        "        await gather_all(self._stop(pod, session) for pod in (*steps.stop, *steps.surplus))\n"
        "        await self._remove_finalizers(key, session, (*steps.release, *steps.surplus))\n",
        "test_jobs.py::test_a_suspended_job_lets_go_of_its_pods_before_it_stops_them",
    ),
    Mutant(
        "claims",
        f"{FOLDER}/storage.py",
        'if spec.volume_name not in ("", volume_of(claim)):',
        "if not volume_of(claim):",
        "test_claims.py::test_a_claim_on_a_volume_that_is_not_there_waits",
    ),
    Mutant(
        "claims",
        f"{FOLDER}/storage.py",
        "return any(key in pod.claims for pod in pods if pod.spec.node_name)",
        "return any(key in pod.claims for pod in pods if not pod.is_finished)",
        "test_claims.py::test_a_claim_stays_until_the_last_pod_that_uses_it_is_gone",
    ),
    Mutant(
        "claims",
        f"{FOLDER}/node_snapshot.py",
        "informers.of(CLAIMS).handlers.append(claim_changed)",
        "pass",
        "test_claims.py::test_a_pod_waits_for_its_claim_and_says_so",
    ),
    Mutant(
        "claims",
        f"{FOLDER}/storage.py",
        "        if claim.metadata.deletion_timestamp:\n            return",
        "        if not claim.metadata.name:\n            return",
        "test_claims.py::test_a_pod_is_not_given_a_claim_that_is_going",
    ),
    Mutant(
        "Deployment",
        f"{FOLDER}/deployments.py",
        "has_left = all(pod.is_finished for pod in old)",
        "has_left = True",
        "test_deployments.py::test_a_changed_template_ends_the_old_pods_before_it_makes_new_ones",
    ),
    Mutant(
        "Deployment",
        f"{FOLDER}/deployments.py",
        "surplus = active[: max(0, len(active) - deployment.spec.replicas)]",
        "surplus = active[:0]",
        "test_deployments.py::test_a_deployment_follows_its_number_of_replicas",
    ),
    Mutant(
        "Deployment",
        f"{FOLDER}/deployments.py",
        "is_met=ready >= wanted",
        "is_met=ready >= 0",
        "test_deployments.py::test_a_deployment_without_its_pods_says_so",
    ),
)

PLANE_MUTANTS = (*JOBS, *MACHINES, *BESIDE)
