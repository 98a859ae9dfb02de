"""Faults that the embedded engine might have."""

from .mutant import Mutant

FOLDER = "holdfast/cluster/embedded"

WRITES = (
    Mutant(
        "conflicts",
        f"{FOLDER}/writes.py",
        "raise modified(kind, old.meta.name)",
        "pass",
        "test_conflicts.py::test_a_replacement_of_a_stale_version_is_refused",
    ),
    Mutant(
        "conflicts",
        f"{FOLDER}/writes.py",
        "and not kind.special.replaced_without_version:",
        "and kind.special.replaced_without_version:",
        "test_conflicts.py::test_a_custom_resource_is_replaced_only_with_its_version",
    ),
    Mutant(
        "uid preconditions",
        f"{FOLDER}/writes.py",
        "if uid and uid != old.meta.uid:",
        "if uid and not old.meta.uid:",
        "test_conflicts.py::test_a_delete_of_another_uid_is_refused_and_the_object_stays",
    ),
    Mutant(
        "uid preconditions",
        f"{FOLDER}/metadata.py",
        'given_once = ("uid", "deletion',
        'given_once = ("deletion',
        "test_conflicts.py::test_a_patch_guarded_by_another_uid_is_refused",
    ),
    Mutant(
        "version preconditions",
        f"{FOLDER}/writes.py",
        "if resource_version and resource_version != old.meta.resource_version:",
        "if resource_version and not old.meta.resource_version:",
        "test_conflicts.py::test_a_delete_of_a_stale_version_is_refused_and_the_object_stays",
    ),
    Mutant(
        "no-op writes",
        f"{FOLDER}/writes.py",
        "return old if same(draft, before) else self._put(kind, draft)",
        "return self._put(kind, draft)",
        "test_conflicts.py::test_a_write_that_changes_nothing_keeps_the_version_and_makes_no_event",
    ),
    Mutant(
        "generation",
        f"{FOLDER}/writes.py",
        "and not same(_wanted(kind, draft), _wanted(kind, old)):",
        "and not same(draft, old):",
        "test_generation.py::test_only_a_change_of_the_spec_raises_the_generation",
    ),
    Mutant(
        "generation",
        f"{FOLDER}/deletion.py",
        'metadata["generation"] += 1',
        'metadata["generation"] += 0',
        "test_finalizers.py::test_being_marked_counts_as_a_new_generation",
    ),
    Mutant(
        "status isolation",
        f"{FOLDER}/writes.py",
        'draft |= {"status": old["status"]} if "status" in old else {}',
        "pass",
        "test_generation.py::test_a_patch_of_the_object_leaves_its_status_alone",
    ),
    Mutant(
        "status isolation",
        f"{FOLDER}/writes.py",
        'for name, value in old.items() if name != "status"}',
        'for name, value in draft.items() if name != "status"}',
        "test_generation.py::test_a_patch_of_the_status_changes_neither_spec_nor_metadata",
    ),
    Mutant(
        "defaults",
        f"{FOLDER}/kinds/jobs.py",
        "DEFAULT_BACKOFF_LIMIT = 6",
        "DEFAULT_BACKOFF_LIMIT = 5",
        "test_defaults.py::test_a_job_gets_the_defaults_that_its_controller_goes_by",
    ),
    Mutant(
        "defaults",
        f"{FOLDER}/admission.py",
        "in completed(fresh, schema).items()",
        "in (fresh if kind.custom else completed(fresh, schema)).items()",
        "test_defaults.py::test_a_custom_resource_gets_the_defaults_of_its_schema",
    ),
    Mutant(
        "invalid objects",
        f"{FOLDER}/admission.py",
        "found += rule_violations(_visible(draft), schema, _visible(old) if old else None)",
        "pass",
        "test_schemas.py::test_a_rule_across_fields_answers_with_its_message_and_path",
    ),
    Mutant(
        "invalid objects",
        f"{FOLDER}/admission.py",
        "    if unknown:\n",
        "    if unknown and not kind.custom:\n",
        "test_objects.py::test_an_unknown_field_is_refused_with_its_path",
    ),
    Mutant(
        "invalid objects",
        f"{FOLDER}/metadata.py",
        "    yield from _name_problems(kind, metadata)\n",
        "",
        "test_objects.py::test_a_name_that_is_no_dns_name_is_refused_with_its_path",
    ),
    Mutant(
        "invalid objects",
        f"{FOLDER}/kinds/jobs.py",
        '    "podFailurePolicy",\n',
        "",
        "test_schemas.py::test_a_jobs_fixed_fields_cannot_be_changed",
    ),
)

READS = (
    Mutant(
        "label selectors",
        f"{FOLDER}/selectors.py",
        "labels.get(key) != unwanted",
        "labels.get(key, unwanted) != unwanted",
        "test_selectors.py::test_a_label_selector_lists_what_it_describes",
    ),
    Mutant(
        "label selectors",
        f"{FOLDER}/selection.py",
        "if was and not now and write.old is not None:",
        "if was and not now and write.old is None:",
        "test_selectors.py::test_a_watch_shows_what_enters_and_leaves_the_selection",
    ),
    Mutant(
        "field selectors",
        f"{FOLDER}/selectors.py",
        "all((value_at(path) == value) == equal",
        "any((value_at(path) == value) == equal",
        "test_selectors.py::test_a_field_selector_finds_an_object_by_name_and_namespace",
    ),
    Mutant(
        "watch resume",
        f"{FOLDER}/history.py",
        "position = log.position_after(version)",
        "position = log.position_after(version + 1)",
        "test_watch.py::test_a_watch_resumed_anywhere_shows_the_rest_without_loss_or_repeat",
    ),
    Mutant(
        "410",
        f"{FOLDER}/history.py",
        "if version < log.floor:",
        "if version < 0:",
        "test_watch.py::test_a_version_that_is_no_longer_kept_is_expired",
    ),
    Mutant(
        "order under load",
        f"{FOLDER}/ledger.py",
        "self._published(writes)",
        "self._published(writes[::-1])",
        "test_watch.py::test_under_load_nothing_is_lost_and_all_watchers_see_one_order",
    ),
    Mutant(
        "namespaces",
        f"{FOLDER}/selection.py",
        "if self._namespace and each.meta.namespace != self._namespace:",
        "if self._namespace and not each.meta.namespace:",
        "test_namespaces.py::test_a_list_over_all_namespaces_finds_what_each_of_them_holds",
    ),
    Mutant(
        "namespaces",
        f"{FOLDER}/writes.py",
        "if home.meta.deletion_timestamp:",
        "if not home.meta.name:",
        "test_namespaces.py::test_an_ending_namespace_takes_no_new_objects",
    ),
)

DELETION = (
    Mutant(
        "finalizers",
        f"{FOLDER}/deletion.py",
        '    if not marked["metadata"].get("finalizers"):\n',
        '    if marked["metadata"]:\n',
        "test_finalizers.py::test_a_held_object_is_marked_and_stays",
    ),
    Mutant(
        "finalizers",
        f"{FOLDER}/deletion.py",
        'and not new["metadata"].get("finalizers")',
        'and not before.get("finalizers")',
        "test_finalizers.py::test_an_object_goes_when_its_last_finalizer_is_taken_off",
    ),
    Mutant(
        "finalizers",
        f"{FOLDER}/metadata.py",
        "        if added:\n",
        "        if len(added) > 1:\n",
        "test_finalizers.py::test_a_marked_object_gains_no_new_finalizer",
    ),
    Mutant(
        "finalizers",
        f"{FOLDER}/writes.py",
        "self._ledger.remove(old)\n            return stored(",
        "self._ledger.remove(self._put(kind, draft))\n            return stored(",
        "test_finalizers.py::test_a_watch_sees_the_mark_and_then_the_end",
    ),
    Mutant(
        "background deletion",
        f"{FOLDER}/collector.py",
        "if write.change is Change.DELETED or _waits_for_dependents(write.new):",
        "if _waits_for_dependents(write.new):",
        "test_owners.py::test_background_deletion_takes_the_owner_at_once_and_its_children_later",
    ),
    Mutant(
        "background deletion",
        f"{FOLDER}/collector.py",
        "if len(dead | waiting) < len({reference.uid for reference in owners}):",
        "if not dead | waiting:",
        "test_owners.py::test_a_child_of_two_owners_stays_until_both_are_gone",
    ),
    Mutant(
        "foreground deletion",
        f"{FOLDER}/collector.py",
        "if not any(blocking):",
        "if blocking:",
        "test_owners.py::test_foreground_deletion_keeps_the_owner_until_its_children_are_gone",
    ),
    Mutant(
        "foreground deletion",
        f"{FOLDER}/collector.py",
        "            reference.block_owner_deletion\n",
        "            True\n",
        "test_owners.py::test_foreground_deletion_does_not_wait_for_a_child_that_does_not_block_it",
    ),
    Mutant(
        "orphan deletion",
        f"{FOLDER}/collector.py",
        "self._disown(current, {owner.meta.uid})",
        "self._disown(current, set())",
        "test_owners.py::test_orphaned_children_stay_and_lose_their_owner",
    ),
    Mutant(
        "graceful deletion",
        f"{FOLDER}/kinds/pods.py",
        'if not pod["spec"].get("nodeName") or',
        "if",
        "test_nodes.py::test_a_pod_on_no_machine_goes_at_once",
    ),
)

ENGINE_MUTANTS = (*WRITES, *READS, *DELETION)
