import pytest
from yarl import URL

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.proxy import proxy_from_environment

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("no_proxy", "server", "direct"),
    [
        ("", "https://api.example.com", False),
        ("*", "https://api.example.com", True),
        ("example.com", "https://api.example.com", True),
        ("example.com", "https://example.com", True),
        ("example.com", "https://notexample.com", False),
        (".example.com", "https://api.example.com", True),
        (".example.com", "https://example.com", False),
        ("*.example.com", "https://api.example.com", True),
        ("EXAMPLE.com", "https://api.Example.COM", True),
        ("other.org, example.com", "https://api.example.com", True),
        (",,", "https://api.example.com", False),
        ("example.com:6443", "https://api.example.com:6443", True),
        ("example.com:6443", "https://api.example.com", False),
        ("example.com:443", "https://api.example.com", True),
        ("10.0.0.1", "https://10.0.0.1", True),
        ("10.0.0.1", "https://10.0.0.11", False),
        ("10.0.0.0/8", "https://10.9.8.7:6443", True),
        ("10.0.0.0/8", "https://11.0.0.1", False),
        ("10.0.0.0/8", "https://api.example.com", False),
        ("10.0.0.0/99", "https://10.0.0.1", False),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("fd00::1", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
        ("[fd00::1]:443", "https://[fd00::1]:6443", False),
        ("", "https://localhost:6443", True),
        ("", "https://127.0.0.1:6443", True),
        ("", "https://[::1]:6443", True),
    ],
)
def test_no_proxy_excepts_the_servers_that_it_names(no_proxy: str, server: str, direct: bool) -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert proxy_from_environment(URL(server), environ) == ("" if direct else PROXY)


@pytest.mark.parametrize(
    ("environ", "server", "proxy"),
    [
        ({}, "https://api", ""),
        ({"HTTPS_PROXY": PROXY}, "https://api", PROXY),
        ({"https_proxy": PROXY}, "https://api", PROXY),
        ({"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}, "https://api", PROXY),
        ({"HTTPS_PROXY": "", "https_proxy": PROXY}, "https://api", PROXY),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "api"}, "https://api", ""),
        ({"HTTPS_PROXY": PROXY}, "http://api", ""),
        ({"HTTP_PROXY": PROXY}, "http://api", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://api", ""),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://api", PROXY),
    ],
)
def test_the_variable_for_the_server_s_scheme_counts(environ: dict[str, str], server: str, proxy: str) -> None:
    assert proxy_from_environment(URL(server), environ) == proxy


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@proxy:1080", "http://[me:hunter2"])
def test_what_is_not_a_usable_proxy_is_refused_without_showing_it(proxy: str) -> None:
    with pytest.raises(Misconfigured, match="HTTPS_PROXY") as caught:
        proxy_from_environment(URL("https://api"), {"HTTPS_PROXY": proxy})
    assert "hunter2" not in str(caught.value)
