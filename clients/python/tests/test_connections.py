# SPDX-License-Identifier: MIT
"""Connections have the settings of the user's client: TLS, credential providers, connection classes."""

import subprocess
import threading

import redis
from conftest import Call, free_port, until

from redis_lock_client import Locks

OPENSSL = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"


def test_locks_work_over_tls(server, flavor, tmp_path):
    key, certificate, port = str(tmp_path / "key"), str(tmp_path / "certificate"), free_port()
    subprocess.run([*OPENSSL.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    settings = {"key-file": key, "cert-file": certificate, "ca-cert-file": certificate, "auth-clients": "no", "port": port}
    for name, value in settings.items():
        server.admin.config_set(f"tls-{name}", value)
    locks = flavor.locks(flavor.client(port, ssl=True, ssl_ca_certs=certificate))
    hold = locks.lock("a").acquire()
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: server.waiters("a") == 1)
    hold.release()
    hold = call.end()
    assert hold.valid_for() > 0
    hold.release()


def test_each_connection_asks_the_credential_provider(server, flavor):
    class Provider(redis.CredentialProvider):
        password = "first"

        def get_credentials(self):
            return "app", self.password

    server.admin.execute_command("ACL", "SETUSER", "app", "on", ">first", "+@all", "~*", "&*")
    provider = Provider()
    locks = flavor.locks(flavor.client(server.port, credential_provider=provider))
    with locks.lock("a") as hold:
        assert server.sessions()[0]["user"] == "app"
        provider.password = "second"
        server.admin.execute_command("ACL", "SETUSER", "app", "<first", ">second")
        server.admin.execute_command("CLIENT", "KILL", "USER", "app")
        before = server.calls("lock.events")
        until(lambda: server.calls("lock.events") > before + 1)
        assert not hold.lost


def test_a_thread_makes_its_own_calls(server):
    callers = {}

    class Connection(redis.Connection):
        def send_command(self, *words, **options):
            callers.setdefault(words[0], set()).add(threading.current_thread())
            return super().send_command(*words, **options)

    pool = redis.ConnectionPool(Connection, port=server.port)
    with Locks(redis.Redis(connection_pool=pool)) as locks, locks.lock("a", lease=60) as hold:
        hold.extend()
        assert locks.lock("a", owner="other").try_acquire() is None
    for command in ("LOCK.ACQUIRE", "LOCK.RENEW", "LOCK.RELEASE"):
        assert callers[command] == {threading.current_thread()}
    assert threading.current_thread() not in callers["LOCK.EVENTS"]
