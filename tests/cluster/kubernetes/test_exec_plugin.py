"""Exec plugins: real scripts, run as kubectl would run them."""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from holdfast.cluster.errors import Misconfigured, Unauthorized
from holdfast.cluster.kubernetes.credentials import ExecPluginCredentials
from holdfast.cluster.kubernetes.kubeconfig import ExecPlugin, Server
from holdfast.cluster.kubernetes.material import PemSource
from tests.control_plane.waiting import eventually

V1 = "client.authentication.k8s.io/v1"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Script:
    """A plugin that runs `code`, and counts how often; `say(**status)` prints a credential."""

    def __init__(self, folder: Path, code: str, **spec: Any) -> None:
        self.folder = folder
        path = folder / "plugin"
        path.write_text(
            f"#!{sys.executable}\n"
            + dedent("""\
                import json, os, sys, time
                from pathlib import Path
                HERE = Path(__file__).parent
                with (HERE / "runs").open("a") as runs:
                    runs.write("x")
                RUN = len((HERE / "runs").read_text())
                def say(api_version="client.authentication.k8s.io/v1", **status):
                    print(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status}))
                """)
            + dedent(code)
        )
        path.chmod(0o700)
        self.spec = msgspec.convert({"apiVersion": V1, "command": str(path), **spec}, ExecPlugin)
        self.clock = Clock()

    def plugin(self, server: Server | None = None, **options: Any) -> ExecPluginCredentials:
        return ExecPluginCredentials(self.spec, server or Server(url="https://api"), now=self.clock, **options)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())


async def told(tmp_path: Path, server: Server | None = None, **spec: Any) -> dict[str, Any]:
    """What a plugin is given: its arguments, its environment, its input."""
    script = Script(
        tmp_path,
        """
        told = {"args": sys.argv[1:], "env": dict(os.environ), "stdin": sys.stdin.read()}
        (HERE / "told").write_text(json.dumps(told))
        say(token="t")
        """,
        **spec,
    )
    await script.plugin(server).identity(0.0)
    found: dict[str, Any] = msgspec.json.decode((tmp_path / "told").read_bytes(), type=dict[str, Any])
    return found


async def test_a_token_becomes_a_header(tmp_path: Path) -> None:
    identity = await Script(tmp_path, "say(token='s3cret')").plugin().identity(0.0)
    assert identity.authorization == "Bearer s3cret"
    assert identity.certificate is None


async def test_a_certificate_may_come_with_its_key(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(clientCertificateData='chain', clientKeyData='key')")
    identity = await script.plugin().identity(0.0)
    assert identity.authorization == ""
    assert identity.certificate is not None
    assert (identity.certificate.chain, identity.certificate.key) == (b"chain", b"key")


async def test_what_was_granted_without_end_is_kept(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(token=f'token-{RUN}')")
    plugin = script.plugin()
    await plugin.identity(0.0)
    script.clock.now += timedelta(days=365)
    assert (await plugin.identity(0.0)).authorization == "Bearer token-1"
    assert script.runs == 1


async def test_what_has_expired_is_asked_for_anew(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(token=f'token-{RUN}', expirationTimestamp='2026-03-01T12:10:00Z')")
    plugin = script.plugin()
    await plugin.identity(0.0)
    script.clock.now += timedelta(minutes=9)
    assert (await plugin.identity(0.0)).authorization == "Bearer token-1"
    script.clock.now += timedelta(minutes=1)
    assert (await plugin.identity(0.0)).authorization == "Bearer token-2"


async def test_a_refused_credential_is_fetched_anew_once_for_all_requests(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(token=f'token-{RUN}')")
    plugin = script.plugin()
    refused = await plugin.identity(0.0)

    for _ in range(5):  # those who were refused together hear of it one after the other
        await plugin.renew(refused, 0.0)
        assert (await plugin.identity(0.0)).authorization == "Bearer token-2"
    assert script.runs == 2


async def test_many_requests_at_once_run_it_once(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(token='t')")
    plugin = script.plugin()
    await asyncio.gather(*(plugin.identity(0.0) for _ in range(5)))
    assert script.runs == 1


async def test_it_gets_its_arguments_environment_and_no_input(tmp_path: Path) -> None:
    found = await told(tmp_path, args=["get-token", "--for", "me"], env=[{"name": "REGION", "value": "eu"}])
    assert found["args"] == ["get-token", "--for", "me"]
    assert found["env"]["REGION"] == "eu"
    assert "PATH" in found["env"]
    assert found["stdin"] == ""
    assert msgspec.json.decode(found["env"]["KUBERNETES_EXEC_INFO"]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


async def test_the_plugin_gets_the_cluster_when_it_asks_for_it(tmp_path: Path) -> None:
    server = Server(
        url="https://api:6443",
        authority=PemSource(what="certificate-authority", data=b"pem"),
        name="api.internal",
        proxy="http://proxy:3128",
        exec_config={"audience": "a"},
    )
    found = await told(tmp_path, server, provideClusterInfo=True)
    assert msgspec.json.decode(found["env"]["KUBERNETES_EXEC_INFO"])["spec"]["cluster"] == {
        "server": "https://api:6443",
        "tls-server-name": "api.internal",
        "certificate-authority-data": "cGVt",
        "proxy-url": "http://proxy:3128",
        "config": {"audience": "a"},
    }


async def test_the_beta_version_is_spoken_too(tmp_path: Path) -> None:
    beta = "client.authentication.k8s.io/v1beta1"
    script = Script(tmp_path, f"say('{beta}', token='t')", apiVersion=beta)
    assert (await script.plugin().identity(0.0)).authorization == "Bearer t"


def test_an_older_version_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path, "", apiVersion="client.authentication.k8s.io/v1alpha1")
    with pytest.raises(Misconfigured, match="use a version of it that speaks"):
        script.plugin()


async def test_a_missing_command_gives_the_hint(tmp_path: Path) -> None:
    script = Script(tmp_path, "", command="no-such-plugin", installHint="Install it with\n  pip install it")
    with pytest.raises(Misconfigured, match=r"no-such-plugin \(No such file.*\): Install it with pip install it"):
        await script.plugin().identity(0.0)


async def test_a_failing_command_is_quoted_by_its_last_line(tmp_path: Path) -> None:
    script = Script(tmp_path, "sys.exit('first line\\nplease run sign-in again')")
    with pytest.raises(Unauthorized, match=r"plugin failed \(1\): please run sign-in again$"):
        await script.plugin().identity(0.0)


async def test_a_failing_command_is_run_again_by_the_next_request(tmp_path: Path) -> None:
    script = Script(tmp_path, "say(token='t') if RUN > 1 else sys.exit(1)")
    plugin = script.plugin()
    with pytest.raises(Unauthorized, match="wrote nothing to stderr"):
        await plugin.identity(0.0)
    assert (await plugin.identity(0.0)).authorization == "Bearer t"


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print('s3cret')", "did not print a credential"),
        ('sys.stdout.buffer.write(b\'{"apiVersion":"\\xff"}\')', "did not print a credential"),
        ("print('{}')", "did not print a credential"),
        ("say(token=31337)", r"did not print a credential: .*\$.status.token"),
        ("say(token='s3cret', expirationTimestamp='tomorrow')", "did not print a credential"),
        ("say()", "neither a token nor a certificate with its key"),
        ("say(clientCertificateData='chain')", "neither a token nor a certificate with its key"),
        ("say('client.authentication.k8s.io/v1beta1', token='s3cret')", "make them the same"),
    ],
)
async def test_what_is_not_a_credential_is_refused_and_not_shown(tmp_path: Path, code: str, complaint: str) -> None:
    with pytest.raises(Unauthorized, match=complaint) as caught:
        await Script(tmp_path, code).plugin().identity(0.0)
    assert "s3cret" not in str(caught.value)
    assert "31337" not in str(caught.value)


async def test_a_token_that_is_none_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as caught:
        await Script(tmp_path, "say(token='s3cret\\nX-Evil: 1')").plugin().identity(0.0)
    assert "s3cret" not in str(caught.value)


async def test_a_plugin_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import subprocess
        child = subprocess.Popen(["sleep", "1000"])
        (HERE / "child").write_text(str(child.pid))
        time.sleep(1000)
        """,
    )
    asked = asyncio.create_task(script.plugin().identity(0.0))
    pid = await eventually(
        partial(asyncio.to_thread, read_number, tmp_path / "child"), bool, what="the plugin's own child"
    )
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await eventually(partial(asyncio.to_thread, is_running, pid), lambda running: not running, what="the child's end")


@pytest.mark.parametrize("steps", range(12))
async def test_a_request_that_is_cancelled_while_the_plugin_starts_ends_at_once(steps: int) -> None:
    """However far the start has come, and although something that the plugin started holds its output open."""
    spec = ExecPlugin(api_version=V1, command="sh", args=("-c", "sleep 1000; true"))
    asked = asyncio.create_task(ExecPluginCredentials(spec, Server(url="https://api"), now=Clock()).identity(0.0))
    for _ in range(steps):
        await asyncio.sleep(0)
    be_busy()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_plugin_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """Nor is what it left behind with its output still open."""
    script = Script(
        tmp_path,
        """
        import subprocess
        (HERE / "child").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        """,
    )
    with pytest.raises(Unauthorized, match=r"did not answer within 2 s"):
        await script.plugin(timeout_s=2.0).identity(0.0)
    pid = read_number(tmp_path / "child")
    await eventually(partial(asyncio.to_thread, is_running, pid), lambda running: not running, what="the child's end")


def read_number(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


def is_running(pid: int) -> bool:
    """Not ended; who reaps an ended one is not our concern."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def be_busy() -> None:
    """The loop stands still, as it may on a loaded machine, while the plugin goes on."""
    time.sleep(0.1)
