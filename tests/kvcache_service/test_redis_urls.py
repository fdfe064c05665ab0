"""Every kind of Redis that a URL can name: passwords, ACL users, TLS, a Unix socket, Sentinel, Cluster."""

import asyncio
import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kvcache_service import redis_client
from kvcache_service.config import KVCacheConfig
from kvcache_service.metadata_record import pool_keys
from tests.kvcache_service.real_redis import RealCluster, RealRedis, RealSentinel, free_port, require_tls
from tests.kvcache_service.recorded import Driver, eventually, record, running, up_to_date
from tests.kvcache_service.rig import family


async def serves(url: str) -> None:
    """A pool is written, and comes back to the next life of the service."""
    assert KVCacheConfig(redis_url=url).redis_url == url
    async with running(url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, url)
    async with running(url, incarnation=78, restoring=True) as driver:
        assert len(driver.pools.records) == 1


@pytest.fixture
def start(tmp_path: Path):
    """Starts servers with options, and ends them."""
    started: list[RealRedis] = []

    def start(*options: str, **client_settings: object) -> RealRedis:
        server = RealRedis(tmp_path / f"redis{len(started)}", *options, **client_settings)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


async def test_a_unix_socket(real_redis: RealRedis):
    await serves(real_redis.socket_url)


async def test_a_password(start):
    server = start("--requirepass", "s3cret/@:", password="s3cret/@:")
    await serves(f"redis://:s3cret%2F%40%3A@127.0.0.1:{server.port}/0")


async def test_a_wrong_password_is_a_redis_that_is_away(start):
    server = start("--requirepass", "right", password="right")
    async with running(f"redis://:wrong@127.0.0.1:{server.port}/0") as driver:
        await driver.store.restore(driver.public)
        assert not driver.pools.records.is_known
        await eventually(lambda: driver.store.stats.num_errors > 0)


async def test_an_acl_user_with_no_more_rights_than_the_documented_ones(start):
    server = start()
    commands = ("ping", "hello", "client", "eval", "smembers", "sadd", "srem", "unlink", "exists", "rename", "persist",
                "expire", "hgetall", "hget", "hmget", "hscan", "hset", "hdel", "hincrby", "xadd", "hello")  # fmt: skip
    server.client.acl_setuser(
        "octavo", enabled=True, passwords=["+pw"], keys=["octavo:kv:*"], commands=[f"+{name}" for name in commands]
    )
    await serves(f"redis://octavo:pw@127.0.0.1:{server.port}/0")


async def test_another_database(real_redis: RealRedis):
    await serves(f"redis://127.0.0.1:{real_redis.port}/7")
    assert not real_redis.client.exists(pool_keys("kvcache", "w1").meta)


async def test_tls_with_the_servers_certificate_checked(start, tmp_path: Path):
    require_tls()
    certificate, key = self_signed(tmp_path)
    port = free_port()
    start(
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip
    await serves(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
    async with running(f"rediss://127.0.0.1:{port}/0") as driver:  # a certificate that nobody vouches for
        await driver.store.restore(driver.public)
        assert not driver.pools.records.is_known


async def test_a_sentinel_names_the_master_also_after_a_failover(real_sentinel: RealSentinel):
    url = real_sentinel.url
    async with running(url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, url)
        real_sentinel.master.kill()
        for handle in range(1, 20):
            driver.prefill(handle, family(chr(65 + handle), 48))
            await asyncio.sleep(0.01)
        await up_to_date(driver, url, timeout_s=20.0)
        assert real_sentinel.replica.client.info("replication")["role"] == "master"
        assert real_sentinel.replica.client.exists(pool_keys("kvcache", "w1").meta)


async def test_a_cluster_holds_the_pools_in_the_slots_of_their_own(real_cluster: RealCluster):
    url = real_cluster.url
    async with running(url) as first:
        drivers = [first, *(Driver(first.store, first.pools, f"w{number}") for number in range(2, 9))]
        for driver in drivers:
            driver.open()
        for handle in range(5):
            for driver in drivers:
                driver.prefill(handle, family(chr(65 + handle), 48))
            await asyncio.sleep(0.02)
        for driver in drivers:
            await up_to_date(driver, url)
        first.close()
        assert await first.store.flushed(5.0)
        assert await record(url, "w1") is None
    async with running(url, incarnation=78, restoring=True) as driver:
        assert len(driver.pools.records) == 7
    held = [len(node.client.keys("octavo:kv:*:blocks")) for node in real_cluster.nodes]
    assert sum(held) == 7
    assert sum(count > 0 for count in held) > 1, held


@pytest.mark.slow
async def test_a_cluster_with_a_dead_master_goes_on_for_the_others_and_catches_up(real_cluster: RealCluster):
    for node in real_cluster.nodes:
        node.client.config_set("cluster-require-full-coverage", "no")
    url = real_cluster.url
    async with running(url) as first:
        drivers = [first, *(Driver(first.store, first.pools, f"w{number}") for number in range(2, 9))]
        for driver in drivers:
            driver.open()
        for driver in drivers:
            await up_to_date(driver, url)
        real_cluster.nodes[2].kill()
        for driver in drivers:
            driver.prefill(1, family("A", 48))
        await eventually(lambda: first.store.stats.num_errors > 0)
        real_cluster.nodes[2].start()
        for driver in drivers:
            await up_to_date(driver, url, timeout_s=20.0)


@pytest.mark.parametrize("url", ["redis+sentinel://h:26379", "redis+cluster://:7000,", "http://h"])
def test_a_url_that_names_no_redis_is_refused(url: str):
    with pytest.raises(ValueError, match=r"SERVICE|host:port|scheme"):
        redis_client.client(url)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "redis.crt", folder / "redis.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
