"""A real Kubernetes control plane on this machine: etcd, API server, controllers, scheduler, and kwok for nodes."""

import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.control_plane import commands, kubectl, logins
from tests.control_plane.api import JSON, MERGE, Api, Refused
from tests.control_plane.audit import POLICY, AuditLog, Request
from tests.control_plane.certificates import LOOPBACK, Authority, new_key, write_secret
from tests.control_plane.commands import Files, Ports
from tests.control_plane.component import Component
from tests.control_plane.nodes import Nodes
from tests.control_plane.pods import Pods
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers
from tests.control_plane.waiting import eventually

ADMINISTRATORS = "system:masters"

# What every fake container has said, as a container runtime writes it down.
POD_LOG = "".join(f"2026-01-01T00:00:0{n}.000000000Z stdout F line {n}\n" for n in (1, 2, 3))


class ControlPlane:
    """Everything that it writes lies in `folder`; `flags` adds to the servers' command lines, by server name.

    With an `address`, the API server listens there instead of on the loopback address, and real nodes may join: no
    kwok runs. What `flags` names may be signed beforehand by an `authority` of the caller's.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Path,
        *,
        emulated_version: str = "",
        flags: Mapping[str, Sequence[str]] | None = None,
        address: str = LOOPBACK,
        authority: Authority | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.address = address
        self._binaries = binaries
        self._emulated = [f"--emulated-version={emulated_version}"] if emulated_version else []
        self._flags = flags or {}
        self._authority = authority or Authority(folder, datetime.now(UTC))
        self.ports = Ports(*free_ports(len(Ports._fields)))
        self.url = f"https://{address}:{self.ports.apiserver}"
        self.ca_file = self._authority.file
        self.admin_token = secrets.token_urlsafe(24)
        self.kubeconfig = self._kubeconfig_of("admin")
        logins.with_token(self.kubeconfig, self.url, self.ca_file, self.admin_token)
        self._files = self._write_files()
        self._make_components()
        self._audit = AuditLog(self._files.audit_log)
        self.api = Api(self.url, self.ca_file, self.admin_token)
        self.nodes = Nodes(self.api)
        self.pods = Pods(self.api)

    @property
    def components(self) -> tuple[Component, ...]:
        """In the order in which they start."""
        servers = (self.etcd, self.apiserver, self.controller_manager, self.scheduler)
        return (*servers, self.kwok) if self.address == LOOPBACK else servers

    def start(self) -> None:
        try:
            self.etcd.start()
            self.apiserver.start()
            clients = self.components[2:]
            for component in clients:
                component.launch()
            for component in clients:
                component.await_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End all servers, each before the one that it is a client of, which it would otherwise try to reach."""
        for component in reversed(self.components):
            component.stop()

    def kill(self) -> None:
        for component in self.components:
            component.kill()

    @contextmanager
    def running(self) -> Iterator["ControlPlane"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    @asynccontextmanager
    async def namespace(self) -> AsyncIterator[str]:
        """A new namespace, ready for pods; afterwards it is deleted, and nobody waits for that."""
        name = f"test-{secrets.token_hex(4)}"
        path = f"/api/v1/namespaces/{name}"
        await self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

        async def accounts() -> JSON:
            return await self.api.request("GET", f"{path}/serviceaccounts")

        # A pod is refused until the controllers have made the account that it runs as.
        await eventually(accounts, lambda seen: bool(seen["items"]), what=f"a service account in {name}")
        try:
            yield name
        finally:
            await self._release(name)
            await self.api.request("DELETE", path)

    async def _release(self, namespace: str) -> None:
        """What a finalizer holds up is tried again for ever by the controllers."""
        group = "gpu.warp.dev"
        if not any(each["name"] == group for each in (await self.api.request("GET", "/apis"))["groups"]):
            return
        path = f"/apis/{group}/v1alpha1/namespaces/{namespace}/gpuworkloads"
        for each in (await self.api.request("GET", path))["items"]:
            with suppress(Refused):  # it goes just now
                free = {"metadata": {"finalizers": None}}
                await self.api.request("PATCH", f"{path}/{each['metadata']['name']}", free, content_type=MERGE)

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - subprocess calls it so
        kubeconfig: Path | None = None,
    ) -> str:
        """Run kubectl, as the administrator or with another kubeconfig, and return what it prints."""
        return kubectl.run(
            self._binaries / "kubectl", kubeconfig or self.kubeconfig, self.folder / "kubectl-cache", args, input
        )

    def audit(self, since: int = 0, *, user: str = "") -> list[Request]:
        """The requests that the API server has answered after position `since`, those of one user or all."""
        return [request for request in self._audit.requests(since) if user in ("", request.user.username)]

    def audit_position(self) -> int:
        """Where the audit log ends now."""
        return self._audit.position()

    def user(self, name: str, *groups: str, valid: timedelta = timedelta(days=1)) -> Path:
        """A kubeconfig for a user who may do what their name and groups may: without a `grant`, next to nothing."""
        pair = self._authority.user(name, groups, valid=valid)
        return logins.with_certificate(self._kubeconfig_of(name), self.url, self.ca_file, pair)

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a bearer token of a new service account, whose user name is system:serviceaccount:…"""
        self.kubectl("create", "serviceaccount", name, f"--namespace={namespace}")
        token = self.kubectl("create", "token", name, f"--namespace={namespace}").strip()
        return logins.with_token(self._kubeconfig_of(f"{namespace}.{name}"), self.url, self.ca_file, token)

    def grant(self, user: str, *, verbs: str, resources: str, namespace: str = "") -> None:
        """Allow a user, or a service account by its full user name, what kubectl calls verbs and resources."""
        kind = "role" if namespace else "clusterrole"
        name = f"grant-{secrets.token_hex(4)}"
        scope = [f"--namespace={namespace}"] if namespace else []
        self.kubectl("create", kind, name, f"--verb={verbs}", f"--resource={resources}", *scope)
        self.kubectl("create", f"{kind}binding", name, f"--{kind}={name}", f"--user={user}", *scope)

    def _make_components(self) -> None:
        ports, files = self.ports, self._files
        trust = ssl.create_default_context(cafile=self.ca_file)
        secure = partial(answers, trust=trust)
        self.etcd = self._component("etcd", commands.etcd(ports, files), partial(answers, ports.etcd, "/readyz"))
        self.apiserver = self._component(
            "kube-apiserver",
            commands.apiserver(ports, files) + self._emulated,
            partial(secure, ports.apiserver, "/readyz", host=self.address, token=self.admin_token),
        )
        self.controller_manager = self._component(
            "kube-controller-manager",
            commands.controller_manager(ports, files, self._member("system:kube-controller-manager")) + self._emulated,
            partial(secure, ports.controller_manager, "/healthz"),
        )
        self.scheduler = self._component(
            "kube-scheduler",
            commands.scheduler(ports, files, self._member("system:kube-scheduler")) + self._emulated,
            partial(secure, ports.scheduler, "/readyz"),
        )
        self.kwok = self._component(
            "kwok", commands.kwok(ports, files, self._member("kwok")), partial(answers, ports.kwok, "/readyz")
        )

    def _component(self, name: str, flags: Sequence[str], ready: Callable[[], bool]) -> Component:
        command = [str(self._binaries / name), *flags, *self._flags.get(name, ())]
        return Component(name, command, log=self.folder / f"{name}.log", ready=ready)

    def _member(self, name: str) -> Path:
        """A server's own login, by which the audit log tells it from the others; it may do everything."""
        return self.user(name, ADMINISTRATORS)

    def _write_files(self) -> Files:
        key, policy, tokens = (self.folder / name for name in ("service-account.key", "audit.yaml", "tokens.csv"))
        new_key(key)
        policy.write_text(POLICY)
        (self.folder / "pod.log").write_text(POD_LOG)
        write_secret(tokens, f'{self.admin_token},admin,admin,"{ADMINISTRATORS}"\n')
        return Files(
            folder=self.folder,
            address=self.address,
            ca=self.ca_file,
            serving=self._authority.server("serving", self.address),
            service_account_key=key,
            tokens=tokens,
            audit_policy=policy,
            audit_log=self.folder / "audit.log",
        )

    def _kubeconfig_of(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"


class FreshControlPlane(Protocol):
    """Starts a control plane that nobody else uses."""

    def __call__(
        self, *, emulated_version: str = "", flags: Mapping[str, Sequence[str]] | None = None
    ) -> ControlPlane: ...
