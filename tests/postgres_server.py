"""A PostgreSQL server of its own on loopback, of the distribution's packages, below one temporary folder.

``initdb`` and ``postgres`` refuse to be root, so root runs them as ``postgres`` or ``nobody``.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

START_S = 60
# what was committed outlives the server, as it has to; nothing has to outlive the machine
SETTINGS = {"fsync": "off", "max_connections": "200"}


def program(name: str) -> Path | None:
    """A program of PostgreSQL: on the path, or the newest below /usr/lib/postgresql."""
    found = shutil.which(name)
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: float(p.parts[-3]))
    return Path(found) if found else installed[-1] if installed else None


def missing() -> list[str]:
    """What has to be installed first."""
    return [name for name in ("initdb", "postgres") if program(name) is None]


class PostgresServer:
    """A running server; ``environment`` is what `PAMP_INSTANCE=team` reads."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="pamp-postgres-"))
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.root, user.pw_uid, user.pw_gid)
        self.port = _free_port()
        # characters that a connection URL would take for its own
        self.password = f"p@ss:w%rd {secrets.token_hex(8)}"
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise()
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DAGSTER_PG_HOST": "127.0.0.1",
            "DAGSTER_PG_PORT": str(self.port),
            "DAGSTER_PG_DB": "postgres",
            "DAGSTER_PG_USERNAME": "dagster",
            "DAGSTER_PG_PASSWORD": self.password,
        }

    @contextlib.contextmanager
    def new_database(self) -> Iterator[dict[str, str]]:
        """An empty database, dropped in the end; yields the environment that points at it."""
        name = f"d{secrets.token_hex(4)}"
        self._execute(f"CREATE DATABASE {name}")
        yield {**self.environment, "DAGSTER_PG_DB": name}
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        connection = self._connect()
        connection.autocommit = True
        try:
            connection.cursor().execute(statement)
        finally:
            connection.close()

    def _connect(self) -> Any:
        import psycopg2

        values = self.environment
        return psycopg2.connect(
            host=values["DAGSTER_PG_HOST"],
            port=self.port,
            dbname=values["DAGSTER_PG_DB"],
            user=values["DAGSTER_PG_USERNAME"],
            password=self.password,
            connect_timeout=5,
        )

    def _initialise(self) -> None:
        file = self.root / "password"
        file.write_text(self.password)
        if self._owner:
            os.chown(file, self._owner["user"], self._owner["group"])
        command = [str(program("initdb")), "--pgdata", str(self.root / "data"), "--username", "dagster", "--no-sync"]
        command += ["--auth", "scram-sha-256", "--pwfile", str(file), "--encoding", "UTF8", "--locale", "C"]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True, **self._owner)

    def start(self) -> None:
        """Also after ``kill``."""
        settings = {**SETTINGS, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        settings["unix_socket_directories"] = str(self.root)
        command = [str(program("postgres")), "-D", str(self.root / "data")]
        command += [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.root, stdout=log, stderr=log, start_new_session=True, **self._owner
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"postgres did not start:\n{(self.root / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to the server and its backends, which are in sessions of their own."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=30)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=30)
        shutil.rmtree(self.root)

    def _answers(self) -> bool:
        import psycopg2

        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
