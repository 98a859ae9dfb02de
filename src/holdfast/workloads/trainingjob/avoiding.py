"""Workers keep off nodes that have just been lost: for a while Kubernetes still takes these for ready."""

from collections.abc import Collection
from typing import Any

AVOIDS = "holdfast.dev/avoids"


def with_avoided_nodes(template: dict[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """The pod template with these nodes ruled out, whatever else its affinity says."""
    if not nodes:
        return template
    spec = template["spec"]
    affinity = spec.get("affinity", {})
    node_affinity = affinity.get("nodeAffinity", {})
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives, so that each needs the rules; the API server wants one name in each.
    rules = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    terms = [
        {**term, "matchFields": [*term.get("matchFields", []), *rules]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    ruled = {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**template, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": ruled}}}


def avoided_nodes_annotation(nodes: Collection[str]) -> dict[str, str]:
    """The annotation that tells what a Job was made to avoid."""
    return {AVOIDS: ",".join(sorted(nodes))} if nodes else {}
