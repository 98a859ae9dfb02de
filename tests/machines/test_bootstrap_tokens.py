"""A token for one machine: what Kubernetes takes for one, found by the uid alone, and gone afterwards."""

from datetime import timedelta

from holdfast.api.meta import Key
from holdfast.cluster.resources import SECRETS
from holdfast.machines.bootstrap_tokens import BootstrapToken, mint, revoke, token_id, token_of, token_secret
from holdfast.machines.ssh_keys import token_bytes
from tests.machines.join_bench import BEGINNING, ROOT_KEY, TARGET, join_bench, now
from tests.runtime.virtual import virtual

# By another implementation of HKDF and of base 36.
KNOWN_ID, KNOWN_SECRET = "x56crd", "vtcl834s8r83gdwj"


def token() -> BootstrapToken:
    return token_of(TARGET.uid, token_bytes(ROOT_KEY, TARGET.uid))


def test_a_later_operator_finds_the_token_by_the_uid_and_makes_the_same() -> None:
    assert token_id(TARGET.uid) == KNOWN_ID
    assert token().text == f"{KNOWN_ID}.{KNOWN_SECRET}"


def test_ids_are_of_the_alphabet_of_tokens_and_differ() -> None:
    ids = {token_id(f"uid-{number}") for number in range(1000)}

    assert len(ids) == 1000
    assert all(len(each) == 6 and each.isalnum() and each == each.lower() for each in ids)


def test_the_secret_is_what_kubernetes_takes_for_a_token() -> None:
    body = token_secret(token(), machine=TARGET.node_name, expires_at=BEGINNING)

    assert body["metadata"] == {
        "name": f"bootstrap-token-{KNOWN_ID}",
        "labels": {"app.kubernetes.io/managed-by": "holdfast"},
    }
    assert body["type"] == "bootstrap.kubernetes.io/token"


@virtual
async def test_a_token_lasts_twenty_minutes_and_may_do_what_kubeadm_does() -> None:
    async with join_bench() as bench:
        await mint(bench.cluster, token(), machine=TARGET.node_name, now=BEGINNING)

        secret = await bench.cluster.get(SECRETS, token().secret_key)

        assert token().secret_key == Key("kube-system", f"bootstrap-token-{KNOWN_ID}")
        assert {name: value.decode() for name, value in secret.data.items()} == {
            "token-id": KNOWN_ID,
            "token-secret": KNOWN_SECRET,
            "description": f"For the machine {TARGET.node_name} of holdfast to join the cluster; deleted when it has.",
            "expiration": "2026-03-01T00:20:00Z",
            "usage-bootstrap-signing": "true",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        }


@virtual
async def test_a_token_that_is_there_gets_its_whole_time_anew() -> None:
    async with join_bench() as bench:
        await mint(bench.cluster, token(), machine="m", now=now() - timedelta(minutes=19))
        before = await bench.cluster.get(SECRETS, token().secret_key)

        await mint(bench.cluster, token(), machine="m", now=now())

        after = await bench.cluster.get(SECRETS, token().secret_key)
        assert after.data["expiration"] > before.data["expiration"]
        assert after.data["token-secret"] == before.data["token-secret"]


@virtual
async def test_a_token_is_revoked_once_and_again() -> None:
    async with join_bench() as bench:
        await mint(bench.cluster, token(), machine="m", now=now())

        await bench.joiner.revoke(TARGET.uid)
        assert not await bench.has_token()
        await revoke(bench.cluster, token_id(TARGET.uid))


def test_a_token_is_not_printed() -> None:
    assert KNOWN_SECRET not in f"{token()!r} {token()}"
