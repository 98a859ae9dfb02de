"""A lab leaves nothing behind, however it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane.component import ComponentFailed
from tests.nodes import settings, traces
from tests.nodes.lab import Lab
from tests.nodes.manifests import FOREVER, container, deployment
from tests.nodes.slots import taken
from tests.nodes.until import until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]


def test_a_lab_with_pods_and_a_dead_and_a_cut_off_node_ends_without_a_trace(real_nodes: None) -> None:
    before = traces.host()
    with Lab().running() as lab:
        server = deployment("server", container("server", FOREVER)).replace("replicas: 1", "replicas: 3")
        lab.plane.kubectl("apply", "--filename=-", input=server)
        shown = "--output=jsonpath={.status.readyReplicas}"
        until(lambda: lab.plane.kubectl("get", "deployment", "server", shown) == "3", "all pods run")
        lab.kill_node("n1")
        lab.cut("n2")
        there = traces.of(lab.addresses.lab, lab.folder)
        kinds = {each.split()[0] for each in there}
        assert kinds >= {"folder", "link", "control", "process"}, "what is looked for can't be seen while it is there"
    assert traces.of(lab.addresses.lab, lab.folder) == []
    assert traces.host() == before


def test_what_a_killed_process_leaves_is_cleared_away_by_the_next_lab(real_nodes: None) -> None:
    before = traces.host()
    command = [sys.executable, "-m", "tests.nodes.killed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number, folder = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    left = traces.of(int(number), Path(folder))
    assert f"folder {folder}" in left
    with taken():
        until(lambda: traces.of(int(number), Path(folder)) == [], "all is cleared away")
    assert traces.host() == before


def test_a_lab_that_does_not_start_leaves_nothing(real_nodes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "corefile", lambda kubeconfig: ".:53 { nonsense }")
    lab = Lab()
    with pytest.raises(ComponentFailed, match="coredns"), lab.running():
        pass
    assert traces.of(lab.addresses.lab, lab.folder) == []
