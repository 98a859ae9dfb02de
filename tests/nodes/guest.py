"""What an image and its guest agent bring to a machine: an SSH server, a user with the key of the metadata, kubeadm.

All of it is in layers of the machine's own over /usr and /etc. Of systemd there is no more than kubeadm asks for.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import asyncssh

from tests.nodes.login import login_tree
from tests.nodes.machine import Machine, program

SYSTEMCTL = Path(__file__).with_name("systemctl.sh")
HOST_KEY = "ssh_host_ed25519_key"
USER_ID = 60_123

SSHD = """\
Port 22
ListenAddress {address}
HostKey /etc/ssh/{host_key}
AuthorizedKeysFile /etc/ssh/keys/%u
AllowUsers {user}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
"""
# Control groups and kernel are this computer's, and may not be what an image would bring.
KUBEADM = """\
#!/bin/sh
exec {program} "$@" --ignore-preflight-errors=SystemVerification
"""
KUBELET = """\
#!/bin/sh
exec {program} "$@"
"""
SUDOERS = """\
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
{user} ALL=(ALL) NOPASSWD:ALL
"""


class Guest:
    """`metadata` is what the machine was made with, `programs` where kubelet and kubeadm are."""

    def __init__(self, machine: Machine, address: str, metadata: Mapping[str, str], programs: Path) -> None:
        self._machine = machine
        self._address = address
        self._user, _, self._public_key = metadata["ssh-keys"].partition(":")
        self._programs = programs
        self._key = asyncssh.generate_private_key("ssh-ed25519")

    @property
    def host_key(self) -> str:
        """As a line of known_hosts has it, without the host."""
        return " ".join(self._key.export_public_key().decode().split()[:2])

    def set_up(self) -> None:
        """Before the SSH server starts."""
        etc, usr = self._layer("etc"), self._layer("usr")
        self._write_users(etc)
        self._write_ssh(etc / "ssh")
        (etc / "default").mkdir()
        (etc / "default" / "kubelet").write_text(f"KUBELET_EXTRA_ARGS=--node-ip={self._address}\n")
        kubeadm = KUBEADM.format(program=self._programs / "kubeadm")
        kubelet = KUBELET.format(program=self._programs / "kubelet")
        for name, script in (("kubeadm", kubeadm), ("kubelet", kubelet), ("systemctl", SYSTEMCTL.read_text())):
            file = usr / "local" / "sbin" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(script)
            file.chmod(0o755)
        for name in ("etc", "usr"):
            self._mount(name)
        self._machine.run("/bin/sh", "-ec", "mkdir /run/sshd; echo 1 >/proc/sys/net/ipv4/ip_forward")

    @property
    def ssh_server(self) -> list[str]:
        return ["/usr/sbin/sshd", "-D", "-e"]

    def _layer(self, name: str) -> Path:
        folder = self._machine.folder / "layers" / name / "upper"
        folder.mkdir(parents=True)
        return folder

    def _mount(self, name: str) -> None:
        folder, tree = self._machine.folder / "layers" / name, login_tree()
        (folder / "work").mkdir()
        below = [*([str(tree / name)] if tree else []), f"/{name}"]
        options = f"lowerdir={':'.join(below)},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        self._machine.run(program("mount"), "-t", "overlay", "-o", options, "overlay", f"/{name}")

    def _write_users(self, etc: Path) -> None:
        home = "/var/lib/guest"
        lines = {
            "passwd": ["sshd:x:60122:65534::/run/sshd:/usr/sbin/nologin"],
            "group": [],
            "shadow": ["sshd:*:::::::"],
        }
        if self._user != "root":
            lines["passwd"].append(f"{self._user}:x:{USER_ID}:{USER_ID}::{home}:/bin/sh")
            lines["group"].append(f"{self._user}:x:{USER_ID}:")
            lines["shadow"].append(f"{self._user}:*:::::::")
        for name, more in lines.items():
            shutil.copy(f"/etc/{name}", etc / name)
            with (etc / name).open("a") as file:
                file.writelines(f"{line}\n" for line in more)
        sudoers = etc / "sudoers"
        sudoers.write_text(SUDOERS.format(user=self._user))
        sudoers.chmod(0o440)

    def _write_ssh(self, folder: Path) -> None:
        keys = folder / "keys"
        keys.mkdir(parents=True)
        (keys / self._user).write_text(f"{self._public_key}\n")
        config = SSHD.format(address=self._address, host_key=HOST_KEY, user=self._user)
        (folder / "sshd_config").write_text(config)
        host_key = folder / HOST_KEY
        host_key.write_bytes(self._key.export_private_key())
        host_key.chmod(0o600)
