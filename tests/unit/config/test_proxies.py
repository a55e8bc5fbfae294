"""Which proxy a provider is reached through: the field, the environment, and who is exempt."""

import base64
import io

import pytest
from rich.console import Console

from sluicegate.config import ConfigError, load_text
from sluicegate.config.check import report
from sluicegate.config.load import Loaded
from sluicegate.config.proxies import ProxyError, parse_proxy, proxy_from, read_proxy
from sluicegate.core.tenants import Proxy

OUT = "http://out:3128"


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("http://out", Proxy(False, "out", 80)),
        ("http://out:3128/", Proxy(False, "out", 3128)),
        ("https://out", Proxy(True, "out", 443)),
        ("out:3128", Proxy(False, "out", 3128)),
        ("HTTP://OUT:1", Proxy(False, "out", 1)),
        ("http://[::1]:3128", Proxy(False, "::1", 3128)),
        ("http://me:p%40ss@out:1", Proxy(False, "out", 1, b"Basic " + base64.b64encode(b"me:p@ss"))),
        ("http://me@out:1", Proxy(False, "out", 1, b"Basic " + base64.b64encode(b"me:"))),
        ("http://me:%C3%A9%0D%0A@out:1", Proxy(False, "out", 1, b"Basic " + base64.b64encode(b"me:\xc3\xa9\r\n"))),
    ],
)
def test_a_proxy_is_read(text: str, proxy: Proxy) -> None:
    """http without a scheme, the scheme's port without one, credentials percent-decoded into what is sent."""
    assert parse_proxy(text) == proxy


@pytest.mark.parametrize(
    "text",
    [
        *(
            "socks5://out:1080",
            "ftp://out",
            "http://",
            "http://:3128",
            "http://out:0",
            "http://out:70000",
            "http://out:x",
            "http://out/path",
            "http://out?x",
        ),
        *("http://out#x", "http://o ut", "http://out:1\nx", "http://[::1", "http://" + "ü" * 70, "http://user:hunter2@:1", "hunter2@ftp://x"),
    ],
)
def test_what_is_no_proxy_is_said_without_quoting_it(text: str) -> None:
    """The message names the form; nothing of a password is in it."""
    with pytest.raises(ProxyError, match=r"^must be a proxy such as") as caught:
        parse_proxy(text)
    assert "hunter2" not in str(caught.value)


def test_values_of_the_field() -> None:
    """off, nothing, a URL; anything else is none."""
    assert [read_proxy(value) for value in (None, "", "off", False, OUT)] == [None, None, "off", "off", Proxy(False, "out", 3128)]
    for value in (True, 3128, ["x"], {"http": OUT}):
        with pytest.raises(ProxyError):
            read_proxy(value)


def test_credentials_are_not_shown() -> None:
    """Neither by a proxy's repr nor by that of what contains it."""
    assert repr(parse_proxy("http://me:hunter2@out:1")) == "Proxy(out:1)"
    assert parse_proxy("http://[::1]:1").name == "[::1]:1"


# -- the environment ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "http", "https"),
    [
        ({}, "", ""),
        ({"HTTP_PROXY": "http://a"}, "a", ""),
        ({"HTTPS_PROXY": "http://a"}, "", "a"),
        ({"ALL_PROXY": "http://a"}, "a", "a"),
        ({"all_proxy": "http://a", "ALL_PROXY": "http://b"}, "a", "a"),
        ({"http_proxy": "http://a", "HTTP_PROXY": "http://b", "ALL_PROXY": "http://c"}, "a", "c"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://b"}, "", "b"),
        ({"HTTPS_PROXY": "a:3128"}, "", "a"),
    ],
)
def test_the_environment_names_a_proxy(environ: dict[str, str], http: str, https: str) -> None:
    """By the scheme of the base URL, then for all; small letters first; an empty variable is none."""
    for url, want in (("http://up/v1", http), ("https://up/v1", https)):
        found = proxy_from(environ, url)
        assert (found.host if found else "") == want


EXEMPT = {
    "*": ["http://up", "https://127.0.0.1:81"],
    "up": ["http://up", "http://UP:81/v1", "http://a.up", "http://up."],
    ".example.com, other": ["https://example.com", "https://api.example.com/v1", "http://other"],
    "*.example.com": ["https://example.com", "https://api.example.com/v1"],
    "EXAMPLE.com.": ["https://example.com"],
    "up:443 up:81": ["https://up", "http://up:81"],
    "10.1.2.3": ["http://10.1.2.3", "http://10.1.2.3:81"],
    "10.1.2.3:81": ["http://10.1.2.3:81"],
    "10.0.0.0/8,fd00::/8": ["http://10.1.2.3", "http://[fd00::1]:81"],
    "::1": ["http://[::1]:81", "http://[0:0::1]"],
    "[::1]:81": ["http://[::1]:81"],
    "127.0.0.0/8,localhost": ["http://127.0.0.1:81", "http://localhost:81"],
}
NOT_EXEMPT = {
    "": ["http://up", "http://127.0.0.1:81", "http://localhost"],
    "up": ["http://xup", "http://up.com", "http://127.0.0.1"],
    ".example.com": ["https://badexample.com", "https://example.com.evil"],
    "up:81": ["http://up", "http://up:8"],
    "10.1.2.3": ["http://10.1.2.30", "http://110.1.2.3"],
    "10.0.0.0/8": ["http://11.0.0.1", "http://[::1]", "http://a10.0.0.0"],
    "10.0.0.0/33, 10.0.0.x, [::1, :, ., *., up:99999999999, 0.1": ["http://10.0.0.1", "http://up"],
    "localhost": ["http://127.0.0.1"],
    "::1": ["http://127.0.0.1", "http://[::2]"],
}


@pytest.mark.parametrize(
    ("no_proxy", "url", "exempt"), [(n, u, e) for e, table in ((True, EXEMPT), (False, NOT_EXEMPT)) for n, us in table.items() for u in us]
)
def test_who_is_exempt(no_proxy: str, url: str, exempt: bool) -> None:
    """Names with all below them, ports, addresses, networks, everything; what cannot be read exempts nobody."""
    environ = {"ALL_PROXY": OUT, "NO_PROXY": no_proxy}
    assert (proxy_from(environ, url) is None) is exempt
    assert (proxy_from({"ALL_PROXY": OUT, "NO_PROXY": "*", "no_proxy": no_proxy or "other"}, url) is None) is exempt


def test_a_wrong_variable_is_named() -> None:
    """Unless the provider is exempt; its value is not shown."""
    with pytest.raises(ProxyError, match="the variable ALL_PROXY, which must be") as caught:
        proxy_from({"ALL_PROXY": "socks5://me:hunter2@out"}, "http://up")
    assert "hunter2" not in str(caught.value)
    assert proxy_from({"ALL_PROXY": "socks5://out", "NO_PROXY": "up"}, "http://up") is None


# -- in a configuration -------------------------------------------------------------------------------------------------------------------

FILE = """
providers:
  up: {{dialect: openai, base_url: "{url}", {proxy}}}
models: {{chat: {{deployments: [{{provider: up, model: small}}]}}}}
tenants: {{acme: {{keys: [{{name: lab, sha256: {digest}}}]}}}}
"""


def load(proxy: str = "", url: str = "https://up/v1", **environ: str) -> Loaded:
    return load_text(FILE.format(url=url, proxy=proxy, digest="a" * 64), environ)


def proxy_of(proxy: str = "", url: str = "https://up/v1", **environ: str) -> Proxy | None:
    return load(proxy, url, **environ).policy.models["chat"].deployments[0].provider.proxy


def test_a_providers_own_proxy_goes_first() -> None:
    """Before the environment and its exemptions; `off` is none; a variable works as in any text."""
    environ = {"HTTPS_PROXY": "http://env", "NO_PROXY": "*", "MINE": "http://me:hunter2@mine:1"}
    assert proxy_of("proxy: http://own:1", **environ) == Proxy(False, "own", 1)
    assert proxy_of("proxy: off", HTTPS_PROXY="http://env") is None
    assert proxy_of("proxy: false", HTTPS_PROXY="http://env") is None
    assert proxy_of('proxy: "${MINE}"', **environ) == parse_proxy("http://me:hunter2@mine:1")
    assert proxy_of('proxy: "${NONE:-}"', HTTPS_PROXY="http://env") == Proxy(False, "env", 80)
    assert proxy_of(**environ) is None
    assert proxy_of(HTTPS_PROXY="http://env") == Proxy(False, "env", 80)
    assert proxy_of(url="http://up/v1", HTTPS_PROXY="http://env") is None


@pytest.mark.parametrize(
    ("proxy", "environ"), [('proxy: "socks5://me:hunter2@x"', {}), ("proxy: 3128", {}), ("", {"HTTPS_PROXY": "x://me:hunter2@x"})]
)
def test_mistakes_name_the_field(proxy: str, environ: dict[str, str]) -> None:
    """The path is the provider's; the value is not shown."""
    with pytest.raises(ConfigError, match=r"config:3: providers\.up\.proxy: .*must be a proxy such as http") as caught:
        load(proxy, **environ)
    assert "hunter2" not in str(caught.value)


def test_check_shows_where_calls_go() -> None:
    """Host and port of the proxy, not its credentials; nothing without one."""

    def shown(proxy: str) -> str:
        out = io.StringIO()
        console = Console(file=out, width=250)
        for part in report(load(proxy), 0):
            console.print(part)
        return out.getvalue()

    assert "through proxy out:3128" in shown('proxy: "http://me:hunter2@out:3128"')
    assert "hunter2" not in shown('proxy: "http://me:hunter2@out:3128"')
    assert "proxy" not in shown("")
    assert "hunter2" not in repr(load('proxy: "http://me:hunter2@out:3128"'))


def test_the_proxys_headers_are_the_gateways_own() -> None:
    """A provider's headers cannot set them: they would reach the provider."""
    with pytest.raises(ConfigError, match="is set by the gateway itself"):
        load("headers: {Proxy-Authorization: Basic x}")
