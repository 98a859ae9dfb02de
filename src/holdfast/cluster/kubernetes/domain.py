"""The domain that the DNS names of the cluster end with. The API does not tell it; each pod's resolver does."""

import re
from pathlib import Path

RESOLVER = Path("/etc/resolv.conf")
DOMAIN = re.compile(r"(?=.{1,150}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
# The kubelet lets a pod search in its namespace, in all namespaces, and in the cluster: ml.svc.X, svc.X, X.
_SERVICES = "svc."


def own_cluster_domain(resolver: Path = RESOLVER) -> str:
    """The domain as this pod has it; "" outside of a cluster."""
    try:
        lines = resolver.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    searched = [words[1:] for line in lines if (words := line.split())[:1] == ["search"]]
    # Of several lines the last one counts.
    names = (name.lower().rstrip(".") for name in (searched[-1] if searched else ()))
    domains = (name.removeprefix(_SERVICES) for name in names if name.startswith(_SERVICES))
    return next(filter(DOMAIN.fullmatch, domains), "")
