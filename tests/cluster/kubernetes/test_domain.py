"""What a pod's resolver tells of the cluster's domain."""

from pathlib import Path

import pytest

from holdfast.cluster.kubernetes.domain import DOMAIN, own_cluster_domain

POD = "search ml.svc.{0} svc.{0} {0} example.com\nnameserver 10.96.0.10\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("written", "domain"),
    [
        (POD.format("cluster.local"), "cluster.local"),
        (POD.format("k8s.lab.example"), "k8s.lab.example"),
        (POD.format("local"), "local"),
        (
            "# of a pod\nnameserver 10.96.0.10\n\tsearch  ml.svc.K8S.Example. svc.K8S.Example. K8S.Example.\n",
            "k8s.example",
        ),
        ("search svc.first.example\nsearch svc.second.example\n", "second.example"),
        ("nameserver 192.0.2.1\nsearch lan example.com\n", ""),
        ("search svc. svc.-x svc.good.example\n", "good.example"),
        ("search\n", ""),
        ("", ""),
    ],
)
def test_the_domain_is_what_the_pod_searches_services_in(tmp_path: Path, written: str, domain: str) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(written)
    assert own_cluster_domain(file) == domain


def test_without_a_resolver_there_is_none(tmp_path: Path) -> None:
    assert own_cluster_domain(tmp_path / "resolv.conf") == ""


@pytest.mark.parametrize("text", ["", ".", "a..b", "a b", "-a", "a-", "A", "a/b", "x" * 64, ".".join(["x" * 60] * 3)])
def test_what_is_no_domain_is_none(text: str) -> None:
    assert not DOMAIN.fullmatch(text)
