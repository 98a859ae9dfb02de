"""Where the cluster is found, and what a kubeconfig may say."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.kubeconfig import Config, load_config
from holdfast.cluster.kubernetes.material import PemSource

from .conftest import config_for, write_kubeconfig


def named(path: Path, server: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_kubeconfig(path, cluster={"server": f"https://{server}:6443"})


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token")
    (folder / "ca.crt").write_text("authority")
    (folder / "namespace").write_text("ml-training\n")
    return folder


ONE_CONTEXT = """
clusters: [{{name: c, cluster: {{server: "https://api"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: {context}, context: {{cluster: c, user: u}}}}]
current-context: {context}
"""
EVIL = {
    "deep lists": f"extensions: {'[' * 20_000}{']' * 20_000}",
    "deep maps": f"{'{a: ' * 5_000}x{'}' * 5_000}",
    "an alias in itself": "extensions: &a [*a]",
    "clusters in themselves": "clusters: &a [*a]",
    "aliases of aliases": "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(9)),
    "a token of 5,000 digits": ONE_CONTEXT.format(token="9" * 5_000, context="a"),
    "a context of 5,000 digits": ONE_CONTEXT.format(token="t", context="9" * 5_000),
    "a number as context": ONE_CONTEXT.format(token="t", context="12"),
    "a date that is none": "current-context: 2024-13-45",
    "minutes of minutes": f"current-context: 1{':59' * 4_000}",
    "no number": "current-context: .nan",
    "a set": "clusters: !!set {a, b}",
    "bytes": "clusters: !!binary aGVsbG8=",
    "an object of Python's": "!!python/object/apply:os.system [ls]",
    "a list as key": "? [a]\n: b",
    "a merge of nothing": "<<: [1]",
    "half a character": 'current-context: "\\ud800"',
    "NUL": "current-context: a\0b",
    "no address": ONE_CONTEXT.format(token="t", context="a").replace("//api", "//[::1"),
    "a port beyond all": ONE_CONTEXT.format(token="t", context="a").replace("//api", "//api:99999999"),
}
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def refused(folder: Path, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    with pytest.raises(Misconfigured) as caught:
        config_for(folder, cluster.pop("server", "https://api:6443"), user, **cluster)
    return str(caught.value)


class TestOrder:
    def test_the_file_given_wins_over_everything(self, tmp_path: Path, service_account: Path) -> None:
        given, listed = named(tmp_path / "given", "given"), named(tmp_path / "listed", "listed")
        environ = {"KUBECONFIG": str(listed), "HOME": str(tmp_path), **IN_POD}
        config = load_config(str(given), environ=environ, service_account=service_account)
        assert config.server.url == "https://given:6443"

    def test_the_variable_wins_over_the_home_folder(self, tmp_path: Path) -> None:
        named(tmp_path / ".kube" / "config", "home")
        listed = named(tmp_path / "listed", "listed")
        config = load_config(environ={"KUBECONFIG": str(listed), "HOME": str(tmp_path)})
        assert config.server.url == "https://listed:6443"

    def test_the_home_folder_wins_over_the_service_account(self, tmp_path: Path, service_account: Path) -> None:
        named(tmp_path / ".kube" / "config", "home")
        config = load_config(environ={"HOME": str(tmp_path), **IN_POD}, service_account=service_account)
        assert config.server.url == "https://home:6443"

    def test_a_pod_uses_its_service_account(self, tmp_path: Path, service_account: Path) -> None:
        config = load_config(environ={"HOME": str(tmp_path), **IN_POD}, service_account=service_account)
        assert config.server.url == "https://10.0.0.1:443"
        assert config.server.authority == PemSource(what="certificate-authority", path=service_account / "ca.crt")
        assert config.user.token == PemSource(what="token", path=service_account / "token")
        assert config.namespace == "ml-training"

    def test_an_empty_kubeconfig_counts_as_none(self, tmp_path: Path, service_account: Path) -> None:
        empty = tmp_path / "empty"
        empty.write_text("")
        config = load_config(environ={"KUBECONFIG": str(empty), **IN_POD}, service_account=service_account)
        assert config.source.startswith("the pod's service account")

    def test_an_ipv6_address_is_put_in_brackets(self, tmp_path: Path, service_account: Path) -> None:
        environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
        assert load_config(environ=environ, service_account=service_account).server.url == "https://[fd00::1]:443"

    def test_a_pod_without_a_token_is_no_pod(self, tmp_path: Path, service_account: Path) -> None:
        (service_account / "token").unlink()
        with pytest.raises(Misconfigured, match="not a pod with a service account"):
            load_config(environ={"HOME": str(tmp_path), **IN_POD}, service_account=service_account)

    def test_nothing_found_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured) as caught:
            load_config(environ={"HOME": str(tmp_path)}, service_account=tmp_path)
        line = str(caught.value)
        assert f"{tmp_path}/.kube/config is not there" in line
        assert "pass --kubeconfig FILE or set KUBECONFIG" in line
        assert "\n" not in line

    def test_without_a_home_there_is_no_file_in_it(self, tmp_path: Path, service_account: Path) -> None:
        assert load_config(environ=IN_POD, service_account=service_account).source.startswith("the pod's")

    def test_a_folder_is_not_a_kubeconfig(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=f"cannot read the kubeconfig {tmp_path}: Is a directory"):
            load_config(environ={"KUBECONFIG": str(tmp_path)})

    def test_a_file_that_was_given_must_be_there(self, tmp_path: Path, service_account: Path) -> None:
        with pytest.raises(Misconfigured, match=r"cannot read the kubeconfig .*nowhere: No such file"):
            load_config(str(tmp_path / "nowhere"), environ=IN_POD, service_account=service_account)


class TestMerging:
    def test_the_first_file_that_names_a_thing_decides(self, tmp_path: Path) -> None:
        first, second = named(tmp_path / "first", "first"), named(tmp_path / "second", "second")
        assert load_config(environ={"KUBECONFIG": f"{first}:{second}"}).server.url == "https://first:6443"
        assert load_config(environ={"KUBECONFIG": f"{second}:{first}"}).server.url == "https://second:6443"

    def test_a_context_may_join_parts_of_several_files(self, tmp_path: Path) -> None:
        parts = {
            "contexts": {"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ml"}}]},
            "clusters": {"clusters": [{"name": "k", "cluster": {"server": "https://joined"}}]},
            "users": {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "c"},
        }
        for name, part in parts.items():
            (tmp_path / name).write_text(yaml.safe_dump(part))
        config = load_config(environ={"KUBECONFIG": ":".join(str(tmp_path / name) for name in parts)})
        assert (config.server.url, config.namespace) == ("https://joined", "ml")
        assert config.user.token == PemSource(what="token", data=b"t")

    def test_a_listed_file_that_is_missing_is_passed_over(self, tmp_path: Path) -> None:
        there = named(tmp_path / "there", "there")
        config = load_config(environ={"KUBECONFIG": f"{tmp_path / 'missing'}::{there}"})
        assert config.server.url == "https://there:6443"

    def test_paths_are_relative_to_the_file_that_names_them(self, tmp_path: Path) -> None:
        folder = tmp_path / "deep" / "folder"
        folder.mkdir(parents=True)
        user = {
            "client-certificate": "me.crt",
            "client-key": "/keys/me.key",
            "tokenFile": "../token",
            "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./sign-in"},
        }
        config = config_for(folder, "https://api:6443", user, certificate_authority="ca.crt")
        assert config.server.authority == PemSource(what="certificate-authority", path=folder / "ca.crt")
        assert config.user.certificate == PemSource(what="client-certificate", path=folder / "me.crt")
        assert config.user.key == PemSource(what="client-key", path=Path("/keys/me.key"))
        assert config.user.token == PemSource(what="token", path=folder / "../token")
        assert config.user.plugin is not None
        assert config.user.plugin.command == str(folder / "sign-in")

    def test_a_bare_command_is_looked_up_in_the_path(self, tmp_path: Path) -> None:
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sign-in"}}
        plugin = config_for(tmp_path, "https://api:6443", user).user.plugin
        assert plugin is not None
        assert plugin.command == "sign-in"

    def test_nulls_are_what_kubectl_writes_for_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "nulls"
        path.write_text("""
            current-context: c
            preferences: {}
            users: null
            contexts: [{name: c, context: {cluster: k, user: ""}}]
            clusters: [{name: k, cluster: {server: "https://api", certificate-authority: null}}]
        """)
        assert load_config(str(path), environ={}).server.url == "https://api"


class TestContexts:
    def write(self, folder: Path, **content: Any) -> str:
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def two(self, folder: Path) -> str:
        return self.write(
            folder,
            **{"current-context": "a"},
            contexts=[{"name": name, "context": {"cluster": name, "user": ""}} for name in "ab"],
            clusters=[{"name": name, "cluster": {"server": f"https://{name}"}} for name in "ab"],
        )

    def test_the_current_one_counts_unless_another_is_asked_for(self, tmp_path: Path) -> None:
        path = self.two(tmp_path)
        assert load_config(path, environ={}).server.url == "https://a"
        assert load_config(path, context="b", environ={}).server.url == "https://b"

    def test_an_unknown_one_is_refused_with_those_there_are(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"no context 'z' \(contexts there: a, b\)"):
            load_config(self.two(tmp_path), context="z", environ={})

    def test_none_chosen_says_how_to_choose(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, contexts=[{"name": "a", "context": {}}])
        with pytest.raises(Misconfigured, match=r"no current-context: run `kubectl config use-context NAME`.*a\)"):
            load_config(path, environ={})

    @pytest.mark.parametrize("missing", ["cluster", "user"])
    def test_one_that_points_to_nothing_is_refused(self, tmp_path: Path, missing: str) -> None:
        present = {"cluster": "k", "user": "u"}
        path = self.write(
            tmp_path,
            **{"current-context": "c"},
            contexts=[{"name": "c", "context": {**present, missing: "lost"}}],
            clusters=[{"name": "k", "cluster": {"server": "https://api"}}],
            users=[{"name": "u", "user": {}}],
        )
        with pytest.raises(Misconfigured, match=f"its {missing} 'lost' is not described there"):
            load_config(path, environ={})


class TestRefusals:
    @pytest.mark.parametrize("server", ["", "api:6443", "ftp://api", "https://", "https://[bad"])
    def test_a_server_must_be_an_address(self, tmp_path: Path, server: str) -> None:
        assert "its server must be written as https://HOST:PORT" in refused(tmp_path, server=server)

    def test_a_password_in_the_address_is_refused_and_not_shown(self, tmp_path: Path) -> None:
        line = refused(tmp_path, server="https://me:hunter2@api")
        assert "user name or password" in line
        assert "hunter2" not in line

    def test_trusting_everyone_and_one_authority_exclude_each_other(self, tmp_path: Path) -> None:
        line = refused(tmp_path, insecure_skip_tls_verify=True, certificate_authority="ca.crt")
        assert "exclude each other" in line

    def test_an_auth_provider_is_refused_with_what_to_use(self, tmp_path: Path) -> None:
        assert "use an exec plugin" in refused(tmp_path, {"auth-provider": {"name": "gcp"}})

    def test_a_token_and_a_password_exclude_each_other(self, tmp_path: Path) -> None:
        line = refused(tmp_path, {"token": "s3cret", "username": "me", "password": "hunter2"})
        assert "a token or a password, not both" in line
        assert "s3cret" not in line
        assert "hunter2" not in line

    @pytest.mark.parametrize("alone", ["client-certificate", "client-key"])
    def test_a_certificate_and_its_key_go_together(self, tmp_path: Path, alone: str) -> None:
        assert "go together, and only one is there" in refused(tmp_path, {alone: "file"})

    def test_a_plugin_that_must_ask_a_person_is_refused(self, tmp_path: Path) -> None:
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sign-in",
            "interactiveMode": "Always",
        }
        assert "sign-in wants to ask a person" in refused(tmp_path, {"exec": plugin})

    def test_data_that_is_not_base64_is_named_and_not_shown(self, tmp_path: Path) -> None:
        line = refused(tmp_path, {"client-certificate-data": "%%%", "client-key-data": "%%%"})
        assert "client-certificate-data is not base64" in line
        assert "%%%" not in line

    @pytest.mark.parametrize("proxy", ["socks5://proxy:1080", "proxy", "http://"])
    def test_only_http_proxies_are_spoken_to(self, tmp_path: Path, proxy: str) -> None:
        assert "use an http:// or https:// proxy" in refused(tmp_path, proxy_url=proxy)

    def test_impersonating_what_is_no_name_is_refused(self, tmp_path: Path) -> None:
        assert "not one line" in refused(tmp_path, {"as": "me\r\nX-Remote-User: root"})

    def test_a_file_that_is_not_yaml_is_named_by_line_and_not_shown(self, tmp_path: Path) -> None:
        path = tmp_path / "broken"
        path.write_text("users:\n- name: me\n  user: {token: s3cret\n")
        with pytest.raises(Misconfigured) as caught:
            load_config(str(path), environ={})
        assert "is not YAML: line 4" in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "binary"
        path.write_bytes(b"\x00\xff\x9f")
        with pytest.raises(Misconfigured, match="is not YAML"):
            load_config(str(path), environ={})

    def test_a_wrong_type_is_named_by_its_path_and_not_shown(self, tmp_path: Path) -> None:
        path = tmp_path / "typed"
        path.write_text("users: [{name: me, user: {token: 31337}}]")
        with pytest.raises(Misconfigured) as caught:
            load_config(str(path), environ={})
        assert "$.users[0].user.token" in str(caught.value)
        assert "31337" not in str(caught.value)

    def test_a_file_that_holds_something_else_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text("just words")
        with pytest.raises(Misconfigured, match="is not one"):
            load_config(str(path), environ={})

    @pytest.mark.parametrize("written", ["token: {'s3cret", "token: *s3cret", "token: 1e1000", "token: !s3cret x"])
    def test_what_the_parser_stumbles_over_is_not_shown(self, tmp_path: Path, written: str) -> None:
        path = tmp_path / "broken"
        path.write_text(f"users:\n- name: me\n  user: {{{written}}}\n")
        with pytest.raises(Misconfigured) as caught:
            load_config(str(path), environ={})
        assert not {"s3cret", "1e1000"} & set(re.findall(r"\w+", str(caught.value)))

    @pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL.keys())
    def test_an_odd_file_is_refused_in_a_sentence(self, tmp_path: Path, evil: str) -> None:
        path = tmp_path / "odd"
        path.write_text(evil)
        with pytest.raises(Misconfigured, match=re.escape(str(path))):
            load_config(str(path), environ={})

    def test_a_date_is_the_name_that_it_looks_like(self, tmp_path: Path) -> None:
        path = tmp_path / "dated"
        path.write_text(ONE_CONTEXT.format(token="t", context="2024-01-01"))
        assert "context '2024-01-01'" in load_config(str(path), environ={}).source


SECRETS: list[dict[str, Any]] = [
    {"token": "t"},
    {"tokenFile": "token"},
    {"username": "me", "password": "p"},
    {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "plugin"}},
]


class TestPlainHttp:
    @pytest.mark.parametrize("user", SECRETS)
    @pytest.mark.parametrize("host", ["api.example.com", "10.0.0.1:8080", "[2001:db8::1]", "localhost.example.com"])
    def test_a_secret_is_not_sent_over_it(self, tmp_path: Path, host: str, user: dict[str, Any]) -> None:
        said = refused(tmp_path, user, server=f"http://{host}")
        assert "write https://, or insecure-skip-tls-verify: true" in said

    @pytest.mark.parametrize("host", ["localhost:8001", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080"])
    def test_this_machine_is_no_way_to_listen_on(self, tmp_path: Path, host: str) -> None:
        assert config_for(tmp_path, f"http://{host}", {"token": "t"}).server.url == f"http://{host}"

    def test_plain_http_is_used_where_the_kubeconfig_skips_verification(self, tmp_path: Path) -> None:
        config = config_for(tmp_path, "http://api:8080", {"token": "t"}, insecure_skip_tls_verify=True)
        assert config.server.url == "http://api:8080"

    def test_without_a_secret_there_is_nothing_to_lose(self, tmp_path: Path) -> None:
        assert config_for(tmp_path, "http://api:8080").server.url == "http://api:8080"


class TestUsers:
    def test_inline_data_wins_over_files(self, tmp_path: Path) -> None:
        encoded = base64.b64encode(b"pem").decode()
        user = {"client-certificate": "a", "client-certificate-data": encoded, "client-key-data": encoded}
        config = config_for(tmp_path, "https://api", user, certificate_authority_data=encoded)
        assert config.user.certificate == PemSource(what="client-certificate", data=b"pem")
        assert config.user.key == PemSource(what="client-key", data=b"pem")
        assert config.server.authority == PemSource(what="certificate-authority", data=b"pem")

    def test_a_token_file_wins_over_the_token_beside_it(self, tmp_path: Path) -> None:
        config = config_for(tmp_path, "https://api", {"token": "old", "tokenFile": "token"})
        assert config.user.token == PemSource(what="token", path=tmp_path / "token")

    def test_impersonation_becomes_headers(self, tmp_path: Path) -> None:
        user = {
            "as": "jane",
            "as-uid": "42",
            "as-groups": ["dev", "ops"],
            "as-user-extra": {"example.com/scope": ["view", "edit"]},
        }
        assert config_for(tmp_path, "https://api", user).user.impersonation == (
            ("Impersonate-User", "jane"),
            ("Impersonate-Uid", "42"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Extra-example.com%2Fscope", "view"),
            ("Impersonate-Extra-example.com%2Fscope", "edit"),
        )

    def test_a_server_behind_a_path_keeps_it(self, tmp_path: Path) -> None:
        assert config_for(tmp_path, "https://rancher/k8s/clusters/c1/").server.url == "https://rancher/k8s/clusters/c1"


class TestProxies:
    def load(self, folder: Path, environ: dict[str, str], **cluster: Any) -> Config:
        path = write_kubeconfig(folder / "kubeconfig", cluster={"server": "https://api:6443", **cluster})
        return load_config(str(path), environ=environ)

    def test_the_environment_names_one(self, tmp_path: Path) -> None:
        assert self.load(tmp_path, {"HTTPS_PROXY": "http://proxy:3128"}).server.proxy == "http://proxy:3128"

    def test_the_cluster_s_own_wins_whatever_is_excepted(self, tmp_path: Path) -> None:
        environ = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}
        assert self.load(tmp_path, environ, **{"proxy-url": "http://own:1"}).server.proxy == "http://own:1"

    def test_a_pod_uses_the_environment_too(self, tmp_path: Path, service_account: Path) -> None:
        environ = {"HOME": str(tmp_path), "HTTPS_PROXY": "http://proxy:3128", **IN_POD}
        assert load_config(environ=environ, service_account=service_account).server.proxy == "http://proxy:3128"
        environ["NO_PROXY"] = "10.0.0.0/8"
        assert load_config(environ=environ, service_account=service_account).server.proxy == ""


def test_no_secret_shows_when_a_configuration_is_printed(tmp_path: Path) -> None:
    key = base64.b64encode(b"private").decode()
    user = {
        "token": "s3cret",
        "client-certificate-data": key,
        "client-key-data": key,
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "x",
            "env": [{"name": "PASSWORD", "value": "hunter2"}],
        },
    }
    config = config_for(tmp_path, "https://api", user, proxy_url="http://me:hunter3@proxy")
    parts = [config, config.user, config.server, config.user.token, config.user.key, config.user.plugin]
    for part in parts:
        assert part is not None
        for text in (repr(part), str(part), f"{part}", str(part.__rich_repr__())):
            assert not any(secret in text for secret in ("s3cret", "private", key, "hunter2", "hunter3"))
