"""One mock provider and one gateway per module that asks for them; a test that needs its own starts it (support_gateway.py)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import support_proxy
from support_gateway import Gateway, Mock, config, running_gateway, running_mock, running_redis

# Who calls in the tests. A test that uses up a limit has a key of its own.
TENANTS = """
  acme:
    limits: [$500/month]
    keys:
      - {name: normal, key: sk-normal, limits: [1000 requests/minute, 1M tokens/minute]}
      - {name: rate, key: sk-rate, limits: [2 requests/s]}
      - {name: minute, key: sk-minute, limits: [300 tokens/minute]}
      - {name: hour, key: sk-hour, limits: [60 tokens/hour]}
      - {name: poor, key: sk-poor, limits: [$0.00004/day]}
      - {name: short, key: sk-short, limits: [100 output tokens/day]}
      - {name: other, key: sk-other, models: [other]}
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e2e")


@pytest.fixture(scope="module")
def mock(directory: Path) -> Iterator[Mock]:
    with running_mock(directory, "--ttft", "2ms", "--tpot", "0ms") as mock:
        yield mock


@pytest.fixture(scope="module")
def gateway(directory: Path, mock: Mock) -> Iterator[Gateway]:
    with running_gateway(directory, config(directory, mock.url, TENANTS)) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support_proxy.certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    with running_redis(tmp_path) as url:
        yield url
