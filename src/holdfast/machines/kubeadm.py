"""What is run on a machine so that it joins: commands, what goes to their standard input, and what their output means.

The token goes to standard input alone: command lines and files can be read by others on the machine.
"""

import re
import shlex
from collections.abc import Mapping
from enum import StrEnum

import msgspec
import yaml

from holdfast.machines.join_credentials import JoinCredentials
from holdfast.machines.joining import JoinTarget

FOLDER = "/run/holdfast"  # in memory, and root's alone
KUBELET_CONF = "/etc/kubernetes/kubelet.conf"

# Without it systemd stops the container runtime at the moment of the notice, and nothing can be saved. The null takes
# out a setting of the cluster's that can't stand beside it.
KUBELET_PATCH: Mapping[str, str | None] = {
    "shutdownGracePeriod": "25s",
    "shutdownGracePeriodCriticalPods": "10s",
    "shutdownGracePeriodByPodPriority": None,
}

LAST_LINES, LONGEST_LINE = 5, 300
# What kubeadm says at the end of every error.
ADVICE = ("To see the stack trace of this error", "[preflight] If you know what you are doing")

# Not all folders with programs of an image are in the PATH of sudo.
_PATH = 'PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/opt/bin"'

_SECRETS = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}|sha256:[0-9a-f]{64}")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_EXIT_STATUS = re.compile(r"^kubeadm ended with exit status (\d+)$", re.MULTILINE)


class MachineState(StrEnum):
    """What the preflight prints."""

    JOINED = "joined"  # the kubelet has its own credentials
    JOINING = "joining"  # kubeadm runs, started by an earlier operator or by the machine itself
    READY = "ready"
    NO_KUBEADM = "no kubeadm"


def join_configuration(target: JoinTarget, credentials: JoinCredentials, *, patience_s: float) -> str:
    """`patience_s`: how long kubeadm waits for the API server, and for its own certificate."""
    labels = ",".join(f"{name}={value}" for name, value in target.node_labels.items())
    patience = f"{int(patience_s)}s"
    document = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": credentials.endpoint,
                "token": credentials.token,
                "caCertHashes": [*credentials.ca_cert_hashes],
            },
            "tlsBootstrapToken": credentials.token,
        },
        "nodeRegistration": {
            "name": target.node_name,
            "taints": [],
            "kubeletExtraArgs": [
                {"name": "node-labels", "value": labels},
                {"name": "provider-id", "value": target.provider_id},
            ],
        },
        "patches": {"directory": f"{FOLDER}/patches"},
        "timeouts": {"discovery": patience, "tlsBootstrap": patience, "kubeletHealthCheck": patience},
    }
    return yaml.safe_dump(document, sort_keys=False)


def preflight_command(user: str) -> str:
    """Prints one `MachineState`."""
    return _as_root(user, _PREFLIGHT)


def join_command(user: str) -> str:
    """Takes the JoinConfiguration on standard input; prints what kubeadm prints, then its exit status."""
    return _as_root(user, _JOIN)


def machine_state(output: str) -> MachineState | None:
    """From the output of the preflight; None when it says something else."""
    lines = output.split("\n")
    return next((each for line in reversed(lines) for each in MachineState if line.strip() == each), None)


def exit_status(output: str, *, otherwise: int) -> int:
    """Of kubeadm; `otherwise` that of the command, which did not come so far."""
    found = _EXIT_STATUS.findall(output)
    return int(found[-1]) if found else otherwise


def last_lines(output: str) -> str:
    """The end of what a machine has said, for people: short, without secrets and without control characters."""
    plain = _SECRETS.sub("[hidden]", _EXIT_STATUS.sub("", _CONTROL.sub("", output)))
    lines = [stripped for line in plain.splitlines() if (stripped := line.strip()) and not stripped.startswith(ADVICE)]
    return " | ".join(line[:LONGEST_LINE] for line in lines[-LAST_LINES:])


# kubeadm shows as a process by its name; a process may end while this looks.
_PREFLIGHT = f"""\
{_PATH}
if [ -e {KUBELET_CONF} ]; then echo {MachineState.JOINED}; exit; fi
for comm in /proc/[0-9]*/comm; do
  read -r name 2>/dev/null <"$comm" || continue
  if [ "$name" = kubeadm ]; then echo {MachineState.JOINING}; exit; fi
done
if command -v kubeadm >/dev/null; then echo {MachineState.READY}; else echo {MachineState.NO_KUBEADM}; fi
"""

# An SSH server may give a command a socket as its standard input, which can't be opened by name; cat makes it a pipe.
# The loop reads on when the connection breaks: kubeadm would die of the first line that it can't print.
_JOIN = f"""\
{_PATH}
mkdir -p {FOLDER}/patches &&
  printf '%s' {shlex.quote(msgspec.json.encode(KUBELET_PATCH).decode())} \
>{FOLDER}/patches/kubeletconfiguration+merge.json || exit
{{
  cat | kubeadm join --config /dev/stdin 2>&1
  echo "kubeadm ended with exit status $?"
}} | {{
  trap '' HUP PIPE
  while IFS= read -r line; do printf '%s\\n' "$line" 2>/dev/null || :; done
}}
"""


def _as_root(user: str, script: str) -> str:
    shell = f"sh -c {shlex.quote(script)}"
    return shell if user == "root" else f"sudo -n {shell}"
