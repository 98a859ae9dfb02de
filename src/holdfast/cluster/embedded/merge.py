"""JSON merge patch (RFC 7386)."""

from typing import Any

from holdfast.cluster.protocol import JSON


def apply_merge_patch(target: JSON, patch: JSON) -> JSON:
    """`target` with `patch` applied; neither is changed, and unchanged parts are shared."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged_value(result.get(key), value)
    return result


def _merged_value(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    return apply_merge_patch(target if isinstance(target, dict) else {}, patch)
