"""What applying a manifest changes: the difference between what was applied, what is there, and what is wanted."""

import json
from typing import Any

from holdfast.api.meta import WORKING_DIRECTORY
from holdfast.cluster.protocol import JSON

# kubectl's own, so that the two commands understand each other.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def with_last_applied(wanted: JSON) -> JSON:
    """The object with a note of what was applied, by which a later apply knows what has been taken out."""
    metadata = wanted["metadata"]
    given = metadata.get("annotations") or {}
    if not isinstance(given, dict):
        return wanted  # the server says what is wrong with it
    annotations = {name: text for name, text in given.items() if name != LAST_APPLIED}
    applied = {**wanted, "metadata": {**metadata, "annotations": annotations}}
    note = json.dumps(applied, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    return {**applied, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: note}}}


def in_folder(part: JSON, folder: str) -> JSON:
    """The object or patch with the folder that its command runs in, which the note of what was applied leaves out."""
    metadata = part.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not folder or not isinstance(annotations, dict):
        return part
    return {**part, "metadata": {**metadata, "annotations": {**annotations, WORKING_DIRECTORY: folder}}}


def patch_to(live: JSON, noted: JSON) -> JSON:
    """The merge patch that makes of the live object what a manifest, with its note, says."""
    metadata = noted["metadata"]
    if "labels" in live["metadata"]:
        # Others put labels there, too: a manifest that has none any more takes away its own.
        metadata = {"labels": {}, **metadata}
    return apply_patch(_last_applied(live), live, {**noted, "metadata": metadata})


def _last_applied(live: JSON) -> JSON:
    """What was applied before; nothing when it was made otherwise."""
    note = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED, "")
    try:
        applied = json.loads(note)
    except ValueError:
        return {}
    return applied if isinstance(applied, dict) else {}


def apply_patch(before: JSON, live: JSON, wanted: JSON) -> JSON:
    """The merge patch that makes the live object hold `wanted`, without what only `before` held.

    What others have added stays. Empty when nothing is to be done.
    """
    patch: JSON = {name: None for name in before if name not in wanted and name in live}
    for name, value in wanted.items():
        if value is None:
            if name in live:
                patch[name] = None
        elif isinstance(value, dict) and isinstance(live.get(name), dict):
            inner = apply_patch(_map(before.get(name)), live[name], value)
            if inner:
                patch[name] = inner
        elif name not in live or not _contains(live[name], value):
            patch[name] = value
    return patch


def _map(value: Any) -> JSON:
    return value if isinstance(value, dict) else {}


def _contains(live: Any, wanted: Any) -> bool:
    """Is it there, defaults aside that the server has filled in?"""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            value is None or (name in live and _contains(live[name], value)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(_contains, live, wanted))
    return bool(live == wanted) and isinstance(live, bool) == isinstance(wanted, bool)
