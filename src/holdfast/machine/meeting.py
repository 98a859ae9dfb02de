"""Where a job's workers meet, on a machine whose pods share one network.

PyTorch and JAX listen for their workers on every address of the machine. Two jobs with one port would fail, or worse,
one's workers would join the other's. So the variables by which they are told where to meet get a port of their own.
"""

from holdfast.machine.addresses import PodAddresses
from holdfast.machine.environment import DeclaredEnv

PAIRS = (("MASTER_ADDR", "MASTER_PORT"), ("PET_MASTER_ADDR", "PET_MASTER_PORT"))
JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"


def with_unique_ports(variables: DeclaredEnv, holder: str, addresses: PodAddresses) -> DeclaredEnv:
    """The variables, with ports on which no other job's workers meet. What came out of a Secret is never touched."""
    written = {name: value for name, value in variables.values.items() if name not in variables.secret}

    def own(host: str, port: str) -> str:
        return str(addresses.port(addresses.resolve(holder, host), int(port))) if _is_port(port) else port

    moved = {port: own(written[host], written[port]) for host, port in PAIRS if host in written and port in written}
    if JAX_COORDINATOR in written:
        host, colon, port = written[JAX_COORDINATOR].rpartition(":")
        moved[JAX_COORDINATOR] = f"{host}{colon}{own(host, port)}"
    return variables.put(moved, secret=False)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5
