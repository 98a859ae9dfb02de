"""Merge patches (RFC 7386)."""

from holdfast.cluster.protocol import JSON


def merge_patch(old: JSON, new: JSON) -> JSON:
    """The smallest patch that makes `new` of `old`; empty when they are equal. A list is replaced as a whole."""
    patch: JSON = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if before == value:
            continue
        patch[name] = merge_patch(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch
