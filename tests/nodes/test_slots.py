"""Labs on one host have numbers of their own, and clear away what dead ones left."""

import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from tests.nodes import slots
from tests.nodes.slots import taken

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from tests.nodes.slots import taken
import tests.nodes.slots as slots
slots.ROUTES = Path(sys.argv[3])
with taken(Path(sys.argv[1])) as slot:
    left = Path(sys.argv[2])
    left.mkdir()
    slot.note(folder=left, groups=[], link="holdfast-none")
    print(slot.number, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quiet_host(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labs that run now on this machine are none of these tests' business."""
    routes = tmp_path_factory.mktemp("routes") / "route"
    routes.write_text("Iface\n")
    monkeypatch.setattr(slots, "ROUTES", routes)


def test_two_labs_at_once_have_different_numbers(tmp_path: Path) -> None:
    with taken(tmp_path) as first:
        with taken(tmp_path) as second:
            assert (first.number, second.number) == (0, 1)
        with taken(tmp_path) as third:
            assert third.number == 1
    with taken(tmp_path) as fourth:
        assert fourth.number == 0


def test_what_a_killed_process_has_noted_is_removed_by_the_next(tmp_path: Path) -> None:
    locks, left = tmp_path / "locks", tmp_path / "left"
    command = [sys.executable, "-c", HOLD, str(locks), str(left), str(slots.ROUTES)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with taken(locks) as beside:
            assert (beside.number, left.exists()) == (1, True)
        process.kill()
    assert left.exists()
    with taken(locks) as after:
        assert (after.number, left.exists()) == (0, False)


def test_what_was_cleared_away_once_is_not_looked_for_again(tmp_path: Path) -> None:
    with taken(tmp_path / "locks") as slot:
        slot.note(folder=tmp_path / "left", groups=[], link="holdfast-none")
        slot.clear()
        (tmp_path / "left").mkdir()
        slot.clear()
    assert (tmp_path / "left").exists()


def test_there_is_an_end_to_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST", 1)
    with taken(tmp_path), pytest.raises(RuntimeError, match="no room for another lab"), taken(tmp_path):
        pass


def test_a_number_whose_network_the_host_uses_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = tmp_path / "routes"
    monkeypatch.setattr(slots, "ROUTES", routes)
    routes.write_text(routes_to("0.0.0.0/0", "192.168.0.0/16", "10.200.7.0/24"))
    with taken(tmp_path / "locks") as slot:
        assert slot.number == 1
    routes.write_text(routes_to("10.0.0.0/8"))
    with pytest.raises(RuntimeError, match="their networks are in use"), taken(tmp_path / "locks"):
        pass


def routes_to(*networks: str) -> str:
    """As the kernel writes them down."""
    lines = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"]
    for network in map(IPv4Network, networks):
        address, mask = (f"{_number(one):08X}" for one in (network.network_address, network.netmask))
        lines.append(f"eth0\t{address}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0")
    return "\n".join(lines)


def _number(address: IPv4Address) -> int:
    return int.from_bytes(address.packed, sys.byteorder)
