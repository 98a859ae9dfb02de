"""Whom the client of the kubelet trusts, and the token that it shows."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.cluster.kubernetes.credentials import StaticCredentials
from holdfast.cluster.kubernetes.kubeconfig import User
from holdfast.cluster.kubernetes.material import PemSource
from holdfast.node.kubelet import KubeletClient, KubeletRefused, KubeletTrust, KubeletUnavailable, KubeletUntrusted
from tests.control_plane.certificates import Authority
from tests.node.kubelets import TOKEN, ScriptedKubelet, answers, self_signed


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[ScriptedKubelet]:
    """With the self-signed certificate that kubeadm leaves."""
    (tmp_path / "checkpoints").mkdir()
    kubelet = ScriptedKubelet(tmp_path / "checkpoints")
    async with kubelet.serving(self_signed(tmp_path / "pki")):
        yield kubelet


@pytest.fixture
def authority(tmp_path: Path) -> PemSource:
    """The cluster's own."""
    (tmp_path / "cluster").mkdir()
    return PemSource(what="ca", data=Authority(tmp_path / "cluster", datetime.now(UTC)).file.read_bytes())


def client(kubelet: ScriptedKubelet, trust: KubeletTrust, token: PemSource | None = None) -> KubeletClient:
    user = User(token=token or PemSource(what="token", data=TOKEN.encode()))
    return KubeletClient(kubelet.url, StaticCredentials(user), trust, clock=lambda: 0.0)


async def test_a_self_signed_kubelet_is_trusted_by_the_file_on_its_node(
    kubelet: ScriptedKubelet, authority: PemSource, tmp_path: Path
) -> None:
    trust = KubeletTrust(authority, tmp_path / "pki" / "kubelet.crt")
    async with client(kubelet, trust) as asked:
        path = await asked.checkpoint("team", "numbers", "trainer", 10)
    assert Path(path).parent == kubelet.checkpoints
    assert [call.target for call in kubelet.calls] == ["team/numbers/trainer"]


@pytest.mark.parametrize("file", ["missing", "another", "garbage"])
async def test_a_kubelet_with_another_certificate_is_shown_no_token(
    kubelet: ScriptedKubelet, authority: PemSource, tmp_path: Path, file: str
) -> None:
    own = tmp_path / "kubelet.crt"
    if file == "another":
        own.write_bytes(self_signed(tmp_path / "other").certificate.read_bytes())
    elif file == "garbage":
        own.write_text("no certificate")
    async with client(kubelet, KubeletTrust(authority, own)) as asked:
        with pytest.raises(KubeletUntrusted, match="--kubelet-certificate"):
            await asked.checkpoint("team", "numbers", "trainer", 10)
    assert kubelet.calls == []


async def test_without_any_certificate_to_trust_nothing_is_sent(kubelet: ScriptedKubelet, tmp_path: Path) -> None:
    async with client(kubelet, KubeletTrust(None, tmp_path / "kubelet.crt")) as asked:
        with pytest.raises(KubeletUntrusted):
            await asked.checkpoint("team", "numbers", "trainer", 10)
    assert kubelet.calls == []


async def test_a_token_that_was_replaced_is_read_again(kubelet: ScriptedKubelet, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    trust = KubeletTrust(None, tmp_path / "pki" / "kubelet.crt")
    async with client(kubelet, trust, PemSource(what="token", path=file)) as asked:
        with pytest.raises(KubeletRefused) as refused:
            await asked.checkpoint("team", "numbers", "trainer", 10)
        assert refused.value.answer.status == 401
        file.write_text(f"{TOKEN}\n")
        await asked.checkpoint("team", "numbers", "trainer", 10)
    assert [call.authorization for call in kubelet.calls] == [
        *["Bearer old"] * 3,
        f"Bearer {TOKEN}",
    ]


async def test_a_runtime_that_starts_just_now_is_no_final_answer(kubelet: ScriptedKubelet, tmp_path: Path) -> None:
    starting = "failed (rpc error: code = Unavailable desc = dial unix containerd.sock: connect: connection refused)"
    kubelet.script = [answers(500, starting)]
    trust = KubeletTrust(None, tmp_path / "pki" / "kubelet.crt")
    async with client(kubelet, trust) as asked:
        with pytest.raises(KubeletUnavailable):
            await asked.checkpoint("team", "numbers", "trainer", 10)


async def test_a_kubelet_that_is_away_is_unavailable(kubelet: ScriptedKubelet, tmp_path: Path) -> None:
    kubelet.url = "https://127.0.0.1:1"
    async with client(kubelet, KubeletTrust(None, tmp_path / "pki" / "kubelet.crt")) as asked:
        with pytest.raises(KubeletUnavailable, match="broke"):
            await asked.checkpoint("team", "numbers", "trainer", 10)
