"""The first process of a machine: makes its namespaces its own, says so, and buries the orphans until it is killed.

boot.py NAME FOLDER, run by path with `python -I -S` as process 1 of new namespaces.
"""

import signal
import socket
import subprocess
import sys
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
LEAF = "init"

# What a kubelet sets for the whole kernel, as it wants it. It finds all in order and changes nothing.
KERNEL = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    socket.sethostname(name)
    _run("mount", "--make-rshared", "/")
    own_control_groups(Path("/proc/self/cgroup").read_text())
    own_kernel_settings(folder / "kernel")
    own_files(folder / "overlays")
    _run("ip", "link", "set", "lo", "up")
    (folder / "up").touch()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries whoever ends
    while True:
        signal.pause()


def own_control_groups(membership: str) -> None:
    """Mount them anew: the group that this process is in is the root."""
    names = [line.split(":")[1] for line in membership.splitlines()]
    if names == [""]:
        _run("mount", "-t", "cgroup2", "cgroup2", str(CGROUPS))
        (CGROUPS / LEAF).mkdir(exist_ok=True)
        (CGROUPS / LEAF / "cgroup.procs").write_text("0")
        return
    _run("mount", "-t", "tmpfs", "tmpfs", str(CGROUPS))
    for name in names:
        folder = CGROUPS / (name.removeprefix("name=") or "unified")
        folder.mkdir()
        kind = ["-t", "cgroup", "-o", name] if name else ["-t", "cgroup2"]
        _run("mount", *kind, "cgroup", str(folder))


def own_kernel_settings(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, value in KERNEL.items():
        file = folder / name.replace("/", "-")
        file.write_text(value)
        _run("mount", "--bind", str(file), f"/proc/sys/{name}")


def own_files(folder: Path) -> None:
    """Nothing that runs here leaves a file outside the machine's folder: not in /run, /var/lib or /var/log."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for name in ("lib", "log"):
        upper, work = folder / name / "upper", folder / name / "work"
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        options = f"lowerdir=/var/{name},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "-o", options, "overlay", f"/var/{name}")
    kubelet = Path("/var/lib/kubelet")  # where it is on every node, and on this machine's disk
    for place in (kubelet, folder.parent / "kubelet"):
        place.mkdir(exist_ok=True)
    _run("mount", "--bind", str(folder.parent / "kubelet"), str(kubelet))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
