"""The operator on real nodes, with the rights that its manifests give it and no others."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.control_plane import logins
from tests.control_plane.ports import free_ports
from tests.nodes.images import HOLDFAST
from tests.nodes.lab import Lab
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess

MANIFESTS = Path(__file__).parents[2] / "manifests" / "operator"
NAMESPACE, ACCOUNT = "holdfast-system", "holdfast-operator"
LONGER_THAN_ANY_TEST = "24h"


def install(lab: Lab) -> Path:
    """The kinds, the operator's namespace and its rights; what it logs in with is returned."""
    plane = lab.plane
    install_kinds(plane)
    for name in ("namespace", "rbac", "spot"):
        plane.kubectl("apply", "--server-side", f"--filename={MANIFESTS / f'{name}.yaml'}")
    token = plane.kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}", f"--duration={LONGER_THAN_ANY_TEST}")
    return logins.with_token(lab.folder / "operator.kubeconfig", plane.url, plane.ca_file, token.strip())


@contextmanager
def operator(lab: Lab, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[OperatorProcess]:
    """It runs on this host, where pods reach it. Its log is in the lab's folder."""
    (reports_port,) = free_ports(1)
    process = OperatorProcess(
        lab.plane,
        lab.folder,
        f"--default-image={HOLDFAST}",
        f"--holdfast-image={HOLDFAST}",
        f"--lease-namespace={NAMESPACE}",
        f"--reports-address={lab.addresses.host}",
        f"--reports-port={reports_port}",
        *options,
        kubeconfig=install(lab),
        environment=environment,
    )
    lab.guests.append(process)
    with process.running():
        yield process
