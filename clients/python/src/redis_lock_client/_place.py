# SPDX-License-Identifier: MIT
"""Where the server is: what is to be known of a client to make connections like its own, and no more of it."""

from __future__ import annotations

import inspect
from typing import Any, Dict, NamedTuple, Optional, Tuple, Type

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from .errors import Misuse

Kind = Type[redis.asyncio.connection.AbstractConnection]

KINDS: Dict[Any, Kind] = {
    redis.Connection: redis.asyncio.Connection,
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}
MANAGED = {
    redis.sentinel.SentinelManagedConnection,
    redis.sentinel.SentinelManagedSSLConnection,
    redis.asyncio.sentinel.SentinelManagedConnection,
    redis.asyncio.sentinel.SentinelManagedSSLConnection,
}
# A pool for threads has some that a connection of asyncio has not.
TLS = {name for name in inspect.signature(redis.asyncio.SSLConnection.__init__).parameters if name.startswith("ssl_")}
SECURE = (redis.SSLConnection, redis.asyncio.SSLConnection)

# What of a connection's settings asyncio has, too. Retries are this package's own affair.
SETTINGS = {"host", "port", "path", "db", "username", "password", "credential_provider", "socket_connect_timeout"}
SETTINGS |= {"client_name", "decode_responses", "encoding", "encoding_errors"}


class Place(NamedTuple):
    kind: Kind
    settings: Dict[str, Any]
    name: Optional[str] = None
    """Of the primary, if these Sentinels know it. Then the settings have no address."""
    sentinels: Tuple["Place", ...] = ()
    host: Optional[str] = None
    """Of the primary, whatever they say: `force_master_ip`."""

    def at(self, host: str, port: int) -> "Place":
        return Place(self.kind, {**self.settings, "host": self.host or host, "port": port})


def place_of(client: Any) -> Place:
    """Of a client for threads or for asyncio. `Misuse` if its connections are of a kind of their own."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise Misuse(f"{type(client).__name__}: a client of this kind is not supported")
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return _place(pool, pool.connection_class)
    if not pool.is_master:
        raise Misuse("replicas have no locks: master_for has the client that is needed")
    if pool.connection_class not in MANAGED:
        raise Misuse(f"{pool.connection_class.__name__}: connections of this kind are not supported")
    plain = _place(pool, redis.asyncio.SSLConnection if issubclass(pool.connection_class, SECURE) else redis.asyncio.Connection)
    sentinels = tuple(place_of(sentinel) for sentinel in manager.sentinels)
    host = getattr(manager, "_force_master_ip", None)
    return Place(plain.kind, plain.settings, pool.service_name, sentinels, host)


def _place(pool: Any, kind: Any) -> Place:
    settings = pool.connection_kwargs
    if isinstance(pool, redis.asyncio.ConnectionPool):
        # What belongs to RESP3 alone is left out, and a pool that is not to be kept.
        ours = {name for name in settings if "maint_notifications" not in name} - {"connection_pool"}
    elif kind in KINDS or kind in KINDS.values():
        kind = KINDS.get(kind, kind)
        ours = {name for name in settings if name in SETTINGS | TLS}
    else:
        raise Misuse(f"{kind.__name__}: connections of this kind are not supported")
    return Place(kind, {name: settings[name] for name in ours})
