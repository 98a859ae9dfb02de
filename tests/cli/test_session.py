"""Which cluster a command talks to, and what it says when there is none."""

from pathlib import Path

import pytest

from holdfast.cli.session import ClusterOptions, load_cluster_config, with_hint
from holdfast.cluster.errors import Misconfigured, NotFound, Unreachable
from holdfast.cluster.login import KUBECONFIG, kubeconfig_text
from tests.cli.lab import holdfast
from tests.control_plane.ports import free_ports


def kubeconfig(path: Path, url: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        kubeconfig_text(url, authority=b"", token="a-secret-token").replace("certificate-authority-data: ''", "")
    )
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Every place holds the address of a server of its own."""
    kubeconfig(tmp_path / "home/.kube/config", "https://home.invalid")
    kubeconfig(tmp_path / "data" / KUBECONFIG, "https://up.invalid")
    kubeconfig(tmp_path / "variable", "https://variable.invalid")
    return {
        "HOME": str(tmp_path / "home"),
        "HOLDFAST_DATA": str(tmp_path / "data"),
        "KUBECONFIG": str(tmp_path / "variable"),
    }


def test_the_places_are_looked_at_in_the_order_that_is_written_down(environ: dict[str, str], tmp_path: Path) -> None:
    named = kubeconfig(tmp_path / "named", "https://named.invalid")
    assert load_cluster_config(ClusterOptions(kubeconfig=named), environ).server.url == "https://named.invalid"
    assert load_cluster_config(ClusterOptions(), environ).server.url == "https://variable.invalid"
    del environ["KUBECONFIG"]
    assert load_cluster_config(ClusterOptions(), environ).server.url == "https://up.invalid"
    assert load_cluster_config(ClusterOptions(context="holdfast"), environ).server.url == "https://home.invalid"
    (tmp_path / "data" / KUBECONFIG).unlink()
    assert load_cluster_config(ClusterOptions(), environ).server.url == "https://home.invalid"


def test_the_kubeconfig_of_an_up_says_where_its_data_is(tmp_path: Path) -> None:
    plain = kubeconfig(tmp_path / "plain", "https://plain.invalid")
    assert load_cluster_config(ClusterOptions(kubeconfig=plain), {}).server.data == ""
    own = tmp_path / "own"
    own.write_text(kubeconfig_text("https://up.invalid", authority=b"a", token="t", data=tmp_path / "data"))
    assert load_cluster_config(ClusterOptions(kubeconfig=own), {}).server.data == str(tmp_path / "data")
    own.write_text(own.read_text().replace("folder: ", "folder: 7  # "))
    assert load_cluster_config(ClusterOptions(kubeconfig=own), {}).server.data == ""


def test_with_no_cluster_anywhere_both_ways_to_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        Misconfigured, match=r"no `holdfast up` runs .* start it in another terminal;.*--kubeconfig FILE"
    ):
        load_cluster_config(ClusterOptions(), {"HOME": str(tmp_path), "HOLDFAST_DATA": str(tmp_path)})


def test_an_up_that_was_killed_is_said_to_have_ended(environ: dict[str, str]) -> None:
    del environ["KUBECONFIG"]
    config = load_cluster_config(ClusterOptions(), environ)
    assert "start it again" in str(with_hint(Unreachable("cannot reach it"), config, environ))
    environ["KUBECONFIG"] = str(Path(environ["HOME"], ".kube/config"))
    elsewhere = load_cluster_config(ClusterOptions(), environ)
    assert str(with_hint(Unreachable("cannot reach it"), elsewhere, environ)) == "cannot reach it"


def test_the_error_of_a_cluster_without_our_kinds_says_how_to_install_them(environ: dict[str, str]) -> None:
    config = load_cluster_config(ClusterOptions(), environ)
    unknown = NotFound("list trainingjobs: the server does not serve this kind")
    assert "holdfast crds" in str(with_hint(unknown, config, environ))
    missing = NotFound('trainingjobs "a" not found')
    assert with_hint(missing, config, environ) is missing


async def test_a_server_that_does_not_answer_is_named_in_one_line_without_the_token(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    login = kubeconfig(tmp_path / KUBECONFIG, f"https://127.0.0.1:{port}")
    done = await holdfast("get", "tj", HOLDFAST_DATA=str(tmp_path))
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert f"cannot reach https://127.0.0.1:{port}" in done.err
    assert str(login) in done.err
    assert "`holdfast up` has ended" in done.err
    assert "a-secret-token" not in done.err
