"""What several kinds of tests share: one real Redis and one real PostgreSQL for the whole session, and the backends of ledgers and records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from support_gateway import running_redis
from support_ledgers import BACKENDS, Backend, backend_of
from support_postgres import fresh, running_postgres
from support_redis import Cluster, running_cluster


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What structlog is told during a test."""
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture.entries
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without a redis-server on PATH the tests that need it fail: they are not skipped."""
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(params=[*BACKENDS, "cluster"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        return Backend("redis", cluster.url, None)
    return backend_of(request.param, tmp_path, request.getfixturevalue("redis_url") if request.param == "redis" else "")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Without PostgreSQL the tests that need it fail: they are not skipped."""
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def records_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where nothing has been recorded yet."""
    return f"sqlite:///{tmp_path}/records.db" if request.param == "sqlite" else fresh(request.getfixturevalue("postgres_url"))
