"""A private PostgreSQL for tests: a new cluster on a free loopback port, ended by its own pid and removed. Without durability, for speed.

PostgreSQL refuses to run as root; then it runs as `postgres` or, where there is no such user, as `nobody`.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import psycopg
from sqlalchemy import Connection, text

from support_gateway import Child, free_port

PASSWORD = "pa:ss/w@rd"  # as it is written in a URL: pa%3Ass%2Fw%40rd
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=60", "unix_socket_directories=")


def _program(name: str) -> str:
    """Debian keeps the server's programs off PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    assert found, f"{name} is needed: `make test` installs PostgreSQL"
    return found


def _unprivileged() -> tuple[list[str], int]:
    """How to start a program as somebody else than root, and who that is (-1: as ourselves)."""
    if os.geteuid() != 0:
        return [], -1
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Yields the URL of its database `postgres`."""
    become, uid = _unprivileged()
    directory = Path(tempfile.mkdtemp(prefix="sluicegate-postgres-"))  # pytest's own directories are closed to other users
    try:
        password = directory / "password"
        password.write_text(PASSWORD)
        if uid >= 0:
            os.chown(directory, uid, -1)
            os.chown(password, uid, -1)
        data, port = directory / "data", free_port()
        new = [_program("initdb"), "-D", str(data), "-U", "gate", "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync"]
        subprocess.run([*become, *new, "-E", "UTF8", "--locale=C"], check=True, cwd=directory, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        settings = [word for setting in (*FAST, "listen_addresses=127.0.0.1", f"port={port}") for word in ("-c", setting)]
        server = Child([*become, _program("postgres"), "-D", str(data), *settings], directory / "postgres.log")
        url = f"postgresql://gate:pa%3Ass%2Fw%40rd@127.0.0.1:{port}/postgres"
        try:
            server.wait_until(lambda: _answers(url))
            yield url
        finally:
            server.stop(SIGINT)  # without waiting for its clients
    finally:
        shutil.rmtree(directory)


def until_waited_for(connection: Connection) -> None:
    """Until another session waits for what this one's transaction has locked."""
    waiting = text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))")
    deadline = time.monotonic() + 10
    while not connection.execute(waiting).scalar():
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.002)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def fresh(url: str) -> str:
    """The URL of an empty place in the same database, for one test."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{url}?options=-csearch_path%3D{name}"
