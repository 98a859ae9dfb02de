"""What `holdfast operator` says when it cannot start: one line that says what to do, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane.ports import free_ports
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.operator.conftest import install_kinds


def operator(kubeconfig: Path | None, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    metrics, health = free_ports(2)
    command = [sys.executable, "-m", "holdfast", "operator", "--bind-address=127.0.0.1"]
    command += [f"--metrics-port={metrics}", f"--health-port={health}", *options]
    if kubeconfig is not None:
        command.append(f"--kubeconfig={kubeconfig}")
    environment = {"PATH": "", "HOME": "/nonexistent", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that it says before it ends with an error."""
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert lines[0].startswith("holdfast: ")
    return lines[0]


def test_without_a_kubeconfig_it_says_how_to_give_one() -> None:
    said = last_words(operator(None))
    assert "--kubeconfig FILE" in said
    assert "KUBECONFIG" in said


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("just words\n", "is not one"),
        ("[1, 2", "is not YAML"),
        ("apiVersion: v1\nkind: Config\n", "says nothing"),
        ("apiVersion: v1\nkind: Config\ncurrent-context: x\n", "'x'"),
    ],
)
def test_a_kubeconfig_that_is_none_is_named_with_what_it_lacks(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    said = last_words(operator(file))
    assert expected in said
    assert str(file) in said


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--framework-image=caffe=repo/caffe:1", "write one of pytorch, tensorflow, jax, =, and an image"),
        ("--framework-image=jax", "write one of pytorch, tensorflow, jax, =, and an image"),
        ("--claim-size=much", "write an amount such as 10Gi"),
        ("--discovery=cluster", "--discovery"),
        ("--cluster-domain=my cluster", "write a DNS domain such as cluster.local"),
        ("--cluster-domain=-x.local", "write a DNS domain such as cluster.local"),
        ("--reports-address=operator.svc", "write the IP address at which pods reach this operator"),
        ("--reports-address=10.0.0.256", "write the IP address at which pods reach this operator"),
        ("--reports-port=65536", "--reports-port"),
        ("--resync=0", "greater than or equal to 1"),
        ("--silent-after=0", "--silent-after"),
        ("--lease-after=0.5", "--lease-after"),
        ("--final-save=-1", "--final-save"),
        ("--uploading-grace=-1", "--uploading-grace"),
        ("--uploading-grace=1.5", "--uploading-grace"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_with_what_to_write(option: str, expected: str) -> None:
    done = operator(None, option)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in last_words(operator(tmp_path / "nowhere"))


def test_a_server_that_does_not_answer_is_named(control_plane: ControlPlane, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    away = tmp_path / "config"
    away.write_text(control_plane.kubeconfig.read_text().replace(control_plane.url, f"https://127.0.0.1:{port}"))
    assert f"cannot reach https://127.0.0.1:{port}" in last_words(operator(away))


def test_a_token_that_the_server_does_not_know_is_not_shown(control_plane: ControlPlane, tmp_path: Path) -> None:
    stranger = tmp_path / "config"
    secret = "a-token-that-nobody-may-see"
    stranger.write_text(control_plane.kubeconfig.read_text().replace(control_plane.admin_token, secret))
    done = operator(stranger, LOG_LEVEL="debug")
    assert "sign in again" in last_words(done)
    assert secret not in done.stdout + done.stderr


def test_a_certificate_that_nobody_vouches_for_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    lines = control_plane.kubeconfig.read_text().splitlines()
    naive = tmp_path / "config"
    naive.write_text("\n".join(line for line in lines if "certificate-authority" not in line))
    said = last_words(operator(naive))
    assert "is not trusted" in said
    assert "certificate-authority" in said


def test_without_the_resource_definitions_it_says_how_to_install_them(fresh_control_plane: FreshControlPlane) -> None:
    plane = fresh_control_plane()
    said = last_words(operator(plane.kubeconfig))
    assert "trainingjobs.ml.example.com" in said
    assert "holdfast crds | kubectl apply --server-side -f -" in said


def test_without_a_right_the_operator_names_the_account_and_the_right(control_plane: ControlPlane) -> None:
    install_kinds(control_plane)
    said = last_words(operator(control_plane.user("nobody-in-particular")))
    assert '"nobody-in-particular" cannot list' in said


def test_at_a_desk_it_says_in_one_line_what_it_can_not_show_and_why(control_plane: ControlPlane) -> None:
    install_kinds(control_plane)
    nobody = control_plane.user("nobody-in-particular")  # it ends by itself

    def told(**environment: str) -> list[str]:
        return [line for line in operator(nobody, **environment).stderr.splitlines() if "are not shown" in line]

    (line,) = told()
    assert "sidecars can't reach the reports port of an operator outside the cluster" in line
    assert "--reports-address" in line
    assert told(POD_IP="127.0.0.1") == []


def test_a_port_in_use_is_named_with_the_option_for_another(control_plane: ControlPlane) -> None:
    port = control_plane.url.rpartition(":")[2]
    said = last_words(operator(control_plane.kubeconfig, f"--health-port={port}"))
    assert port in said
    assert "--health-port" in said


def test_a_port_for_reports_in_use_is_named_with_the_option_for_another(control_plane: ControlPlane) -> None:
    port = control_plane.url.rpartition(":")[2]
    said = last_words(operator(control_plane.kubeconfig, f"--reports-port={port}", POD_IP="127.0.0.1"))
    assert port in said
    assert "--reports-port" in said


def test_a_log_level_that_is_none_is_answered_with_those_that_are(control_plane: ControlPlane) -> None:
    said = last_words(operator(control_plane.kubeconfig, LOG_LEVEL="loud"))
    assert "debug, info, warning, error" in said
