"""What kubeadm is told, the scripts that run it, and what is made of their output."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from holdfast.machines.join_credentials import JoinCredentials
from holdfast.machines.joining import JoinTarget
from holdfast.machines.kubeadm import (
    FOLDER,
    KUBELET_CONF,
    LONGEST_LINE,
    MachineState,
    exit_status,
    join_command,
    join_configuration,
    last_lines,
    machine_state,
    preflight_command,
)

TOKEN = "abcdef.0123456789abcdef"
HASH = f"sha256:{'a' * 64}"
TARGET = JoinTarget(uid="0c5f-1", namespace="ml", node_name="holdfast-0c5f-1", project="acme-ml", zone="europe-west4-a")
CREDENTIALS = JoinCredentials(token=TOKEN, ca_cert_hashes=(HASH,), endpoint="10.0.0.2:6443")


def test_the_configuration_says_who_the_node_is_and_how_to_trust_the_cluster() -> None:
    document = yaml.safe_load(join_configuration(TARGET, CREDENTIALS, patience_s=90))

    assert document == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {"apiServerEndpoint": "10.0.0.2:6443", "token": TOKEN, "caCertHashes": [HASH]},
            "tlsBootstrapToken": TOKEN,
        },
        "nodeRegistration": {
            "name": "holdfast-0c5f-1",
            "taints": [],
            "kubeletExtraArgs": [
                {"name": "node-labels", "value": "holdfast.dev/spot=true,holdfast.dev/instance=0c5f-1"},
                {"name": "provider-id", "value": "gce://acme-ml/europe-west4-a/holdfast-0c5f-1"},
            ],
        },
        "patches": {"directory": f"{FOLDER}/patches"},
        "timeouts": {"discovery": "90s", "tlsBootstrap": "90s", "kubeletHealthCheck": "90s"},
    }


def test_the_token_is_on_no_command_line_and_not_printed() -> None:
    assert TOKEN not in join_command("holdfast") + preflight_command("holdfast") + repr(CREDENTIALS)


def test_only_root_does_without_sudo() -> None:
    assert join_command("root").startswith("sh -c ")
    assert join_command("ubuntu").startswith("sudo -n sh -c ")
    assert preflight_command("ubuntu").startswith("sudo -n sh -c ")


class ScriptedMachine:
    """A folder in the place of a machine's root, where the scripts run as they are sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in ("sh", "cat", "mkdir", "sleep"):
            (self.programs / name).symlink_to(Path("/bin") / name)

    def kubeadm(self, script: str) -> None:
        program = self.programs / "kubeadm"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def here(self, path: str) -> Path:
        return self.folder / path.removeprefix("/")

    def command(self, command: str) -> str:
        for path in (FOLDER, KUBELET_CONF, "/proc/"):
            command = command.replace(path, f"{self.here(path)}/" if path.endswith("/") else str(self.here(path)))
        return command.replace(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/opt/bin", "")

    def run(self, command: str, text: str = "") -> str:
        environment = {"PATH": str(self.programs)}
        done = subprocess.run(
            ["/bin/sh", "-c", self.command(command)],
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> ScriptedMachine:
    return ScriptedMachine(tmp_path)


def test_kubeadm_gets_the_configuration_on_standard_input_and_the_patch_in_a_folder(machine: ScriptedMachine) -> None:
    machine.kubeadm(f'echo "$@" >{machine.folder}/arguments; cat /dev/stdin >{machine.folder}/input; echo joined >&2')

    output = machine.run(join_command("root"), f"token: {TOKEN}\n")

    assert (machine.folder / "arguments").read_text() == "join --config /dev/stdin\n"
    assert (machine.folder / "input").read_text() == f"token: {TOKEN}\n"
    assert output == "joined\nkubeadm ended with exit status 0\n"
    (patch,) = (machine.here(FOLDER) / "patches").iterdir()
    assert patch.name == "kubeletconfiguration+merge.json"
    assert json.loads(patch.read_text()) == {
        "shutdownGracePeriod": "25s",
        "shutdownGracePeriodCriticalPods": "10s",
        "shutdownGracePeriodByPodPriority": None,
    }
    left = [file for file in machine.folder.rglob("*") if file.is_file() and file.name != "input"]
    assert not any(TOKEN in file.read_text(errors="replace") for file in left if machine.programs not in file.parents)


def test_an_exit_status_is_that_of_kubeadm(machine: ScriptedMachine) -> None:
    machine.kubeadm("echo 'error execution phase preflight'; exit 3")

    assert exit_status(machine.run(join_command("root")), otherwise=0) == 3


def test_kubeadm_goes_on_when_nobody_reads_any_more(machine: ScriptedMachine) -> None:
    """As the operator that started it is gone: kubeadm would die of the first line that it could not print."""
    release, done = machine.folder / "release", machine.folder / "done"
    os.mkfifo(release)
    machine.kubeadm(f"cat {release}; for n in 1 2 3 4; do echo line $n || exit 1; done; echo end >{done}")
    process = subprocess.Popen(
        ["/bin/sh", "-c", machine.command(join_command("root"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": str(machine.programs)},
    )
    assert process.stdout is not None
    process.stdout.close()
    release.write_text("")

    assert process.wait(timeout=60) == 0
    assert done.read_text() == "end\n"


def test_a_machine_is_ready_when_kubeadm_is_there(machine: ScriptedMachine) -> None:
    assert machine_state(machine.run(preflight_command("root"))) == MachineState.NO_KUBEADM

    machine.kubeadm("exit 0")

    assert machine_state(machine.run(preflight_command("root"))) == MachineState.READY


def test_a_kubeadm_that_runs_is_found_by_its_name(machine: ScriptedMachine) -> None:
    machine.kubeadm("exit 0")
    for number, name in ((1, "systemd"), (23, "kubelet"), (456, "kubeadm")):
        comm = machine.folder / "proc" / str(number) / "comm"
        comm.parent.mkdir(parents=True)
        comm.write_text(f"{name}\n")

    assert machine_state(machine.run(preflight_command("root"))) == MachineState.JOINING


def test_a_kubelet_with_its_own_credentials_has_joined(machine: ScriptedMachine) -> None:
    machine.kubeadm("exit 0")
    file = machine.here(KUBELET_CONF)
    file.parent.mkdir(parents=True)
    file.touch()

    assert machine_state(machine.run(preflight_command("root"))) == MachineState.JOINED


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("ready\n", MachineState.READY),
        ("Last login: today\nno kubeadm\n", MachineState.NO_KUBEADM),
        ("joined\r\n", MachineState.JOINED),
        ("sudo: a password is required\n", None),
        ("ready to serve\n", None),
        ("", None),
    ],
)
def test_the_state_is_a_line_of_its_own_among_greetings(output: str, state: MachineState | None) -> None:
    assert machine_state(output) == state


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("[preflight] …\nkubeadm ended with exit status 0\n", 0),
        ("kubeadm ended with exit status 1\n", 1),
        ("sudo: a password is required\n", 7),
        ("it said: kubeadm ended with exit status 1\n", 7),
    ],
)
def test_an_exit_status_is_kubeadms_or_that_of_the_command(output: str, status: int) -> None:
    assert exit_status(output, otherwise=7) == status


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", ""),
        ("one\n\n  two \n", "one | two"),
        ("\n".join(str(n) for n in range(9)), "4 | 5 | 6 | 7 | 8"),
        (f"token {TOKEN} is bad, pin {HASH}", "token [hidden] is bad, pin [hidden]"),
        (f"{TOKEN[:8]}\x1b[1m{TOKEN[8:]}", "[hidden]"),
        ("\x1b[31mred\x1b[0m\x07\r\n", "red"),
        ("failed\nkubeadm ended with exit status 1\n", "failed"),
        (
            "[ERROR Swap]\n[preflight] If you know what you are doing\nerror: no\nTo see the stack trace of this error",
            "[ERROR Swap] | error: no",
        ),
        ("x" * 1000, "x" * LONGEST_LINE),
    ],
)
def test_the_last_lines_are_short_and_without_secrets(output: str, said: str) -> None:
    assert last_lines(output) == said
