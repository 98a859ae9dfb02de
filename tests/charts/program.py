"""Helm, and what it and kustomize make of our manifests."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import yaml

from tests.control_plane import kubectl
from tests.control_plane.server import ControlPlane

CHECKOUT = Path(__file__).parents[2]
CHART = CHECKOUT / "charts" / "holdfast"
MANIFESTS = CHECKOUT / "manifests"
NAMESPACE = "holdfast-system"
ANOTHER = "another-system"
# The label of our resource definitions.
OURS = "app.kubernetes.io/part-of=holdfast"
WITHIN_S = 250.0

Object: TypeAlias = dict[str, Any]
Values: TypeAlias = Mapping[str, Any]


class HelmFailed(Exception):
    """Helm ended with an error; `output` is all that it said."""

    def __init__(self, args: tuple[str, ...], code: int, output: str) -> None:
        super().__init__(f"helm {' '.join(args)} ended with exit code {code}:\n{output}")
        self.output = output


class Helm:
    """The real program, with settings and a cache of its own."""

    def __init__(self, program: Path, home: Path, kubeconfig: Path | None = None) -> None:
        """Without a kubeconfig it reaches no cluster."""
        self._program = program
        self._home = home
        self._kubeconfig = kubeconfig or home / "none.kubeconfig"
        self._rendered: dict[object, list[Object]] = {}

    def __call__(self, *args: str, values: Values | None = None) -> str:
        """What it prints; `values` are handed on as a file, as users do."""
        done = subprocess.run(
            [self._program, *args, *(() if values is None else ("--values=-",))],
            input=msgspec.json.encode(values or {}),
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self._home),
                "KUBECONFIG": str(self._kubeconfig),
            },
        )
        said = done.stdout.decode()
        if done.returncode != 0:
            raise HelmFailed(args, done.returncode, said + done.stderr.decode())
        return said

    def rendered(self, values: Values | None = None, *options: str, namespace: str = NAMESPACE) -> list[Object]:
        """The objects of a release, the pod of `helm test` among them; shared with others who ask for the same."""
        asked = (msgspec.json.encode(values or {}), options, namespace)
        if asked not in self._rendered:
            said = self("template", "holdfast", str(CHART), f"--namespace={namespace}", *options, values=values or {})
            self._rendered[asked] = objects(said)
        return self._rendered[asked]


def objects(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def kustomized(binaries: Path, folder: Path, cache: Path) -> list[Object]:
    """What kubectl makes of a folder of manifests."""
    return objects(kubectl.run(binaries / "kubectl", cache / "none", cache, ("kustomize", str(folder)), None))


class Name(NamedTuple):
    kind: str
    namespace: str
    name: str


def by_name(found: Iterable[Object]) -> dict[Name, Object]:
    named = {}
    for each in found:
        metadata = each["metadata"]
        name = Name(each["kind"], metadata.get("namespace", ""), metadata["name"])
        assert name not in named, f"{name} is there twice"
        named[name] = each
    return named


def find(found: Iterable[Object], kind: str, name: str = "") -> Object:
    """The one object of a kind, or of a kind with that name."""
    (one,) = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return one


def container(found: Iterable[Object], kind: str) -> Object:
    """The container of the operator (Deployment) or the agent (DaemonSet)."""
    (one,) = find(found, kind)["spec"]["template"]["spec"]["containers"]
    made: Object = one
    return made


def install(helm: Helm, chart: Path = CHART, **values: Any) -> None:
    helm("install", "holdfast", str(chart), f"--namespace={NAMESPACE}", values=values)


def upgrade(helm: Helm, chart: Path = CHART, **values: Any) -> None:
    """To these values and no others: without the option Helm would keep the old ones when there are no new ones."""
    helm("upgrade", "holdfast", str(chart), f"--namespace={NAMESPACE}", "--reset-values", values=values)


def uninstall(helm: Helm) -> str:
    return helm("uninstall", "holdfast", f"--namespace={NAMESPACE}", "--wait")


def read_kinds(plane: ControlPlane) -> None:
    """Before definitions are deleted: a server that has never read a kind fails, and tries again after minutes."""
    if plane.kubectl("get", "crd", "-l", OURS, "-o", "name"):
        plane.kubectl("wait", "--for=condition=Established", "crd", "-l", OURS)
        names = plane.kubectl("get", "crd", "-l", OURS, "-o", "jsonpath={.items[*].metadata.name}")
        plane.kubectl("get", ",".join(names.split()), "--all-namespaces")
