"""Makes a Redis client for a URL: one server, Sentinel or Cluster. Knows nothing of what is stored."""

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

Client = redis.asyncio.Redis | RedisCluster
FAILURES = (RedisError, RedisClusterException, OSError)  # what a call raises when Redis does not do it

TIMEOUT_S = 1.0  # of every connect and every reply
SENTINEL_PORT, REDIS_PORT = 26379, 6379


def client(url: str) -> Client:
    """A client that connects when it is first used and reports every failure at once.

    Raises ValueError for a URL that `redis_url` may not have. `sentinel_username` and `sentinel_password` in the query
    of a Sentinel URL are for the Sentinels; user and password before the hosts are always for Redis itself.
    """
    scheme = urlsplit(url).scheme
    match scheme:
        case "redis" | "rediss" | "unix":
            return redis.asyncio.from_url(url, **_limits())
        case "redis+cluster" | "rediss+cluster":
            return _cluster(url)
        case "redis+sentinel" | "rediss+sentinel":
            return _sentinel(url)
    raise ValueError(f"{scheme}:// is no scheme of a Redis URL")


async def answered(call: Any) -> Any:
    """What a call answers: the client's types say that it may be there at once; it never is."""
    return await call


async def close(client: Client) -> None:
    """Drop its connections, those to Sentinels too; one that is already gone is no trouble."""
    with suppress(*FAILURES, TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            await client.aclose()
            if isinstance(client, redis.asyncio.Redis) and isinstance(client.connection_pool, SentinelConnectionPool):
                for sentinel in client.connection_pool.sentinel_manager.sentinels:
                    await sentinel.aclose()


def _cluster(url: str) -> RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in _hosts(url, default_port=REDIS_PORT)]
    return RedisCluster(startup_nodes=nodes, **_limits(), **_settings(url))


def _sentinel(url: str) -> redis.asyncio.Redis:
    """The master of redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB, whichever server that is."""
    service, _, db = urlsplit(url).path.strip("/").partition("/")
    if not service:
        raise ValueError("a Sentinel URL names the service: redis+sentinel://host:port,host:port/SERVICE/0")
    settings = _settings(url)
    for_sentinels = {
        name.removeprefix("sentinel_"): settings.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in settings
    }
    if settings.get("ssl"):
        for_sentinels |= {name: value for name, value in settings.items() if name.startswith("ssl")}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(url, default_port=SENTINEL_PORT),
        sentinel_kwargs=_limits() | for_sentinels,
        **_limits(),
        **settings | {"db": int(db or 0)},
    )
    return sentinel.master_for(service)  # type: ignore[no-any-return]


def _hosts(url: str, *, default_port: int) -> list[tuple[str, int]]:
    named = urlsplit(url).netloc.rpartition("@")[2].split(",")
    hosts = []
    for name in named:
        split = urlsplit(f"//{name}")
        if not split.hostname:
            raise ValueError(f"{name!r} is no host:port")
        hosts.append((split.hostname, split.port or default_port))
    return hosts


def _settings(url: str) -> dict[str, Any]:
    """User, password and the query of a URL that names several hosts."""
    split = urlsplit(url)
    credentials, at, hosts = split.netloc.rpartition("@")
    plain = f"{split.scheme.partition('+')[0]}://{credentials}{at}{hosts.partition(',')[0]}?{split.query}"
    settings: dict[str, Any] = dict(parse_url(plain))
    for name in ("host", "port"):
        settings.pop(name, None)
    if settings.pop("connection_class", None) is SSLConnection:
        settings["ssl"] = True
    return settings


def _limits() -> dict[str, Any]:
    """The client's own retries wait for seconds within one command; whoever uses it knows better when to try again."""
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
    }
