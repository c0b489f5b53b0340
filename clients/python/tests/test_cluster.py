# SPDX-License-Identifier: MIT
"""Locks on the nodes of a cluster, slots that move, and a node that restarts."""

import time

import pytest
import redis
import redis.asyncio
from conftest import Call, Server, pairs, until

from redis_lock_client import Lost, Misuse

NODES = 3


WORDS = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "yes"]


class Cluster:
    def __init__(self, folder):
        self.nodes = []
        for number in range(NODES):
            (folder / str(number)).mkdir()
            self.nodes.append(Server(folder / str(number), *WORDS))
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            node.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", number * 16384 // NODES, (number + 1) * 16384 // NODES - 1)
            first.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        until(lambda: all(self.is_complete(node) for node in self.nodes), 20)

    def is_complete(self, node):
        info = node.admin.execute_command("CLUSTER", "INFO")
        text = info if isinstance(info, str) else "\n".join(f"{key}:{value}" for key, value in info.items())
        return "cluster_state:ok" in text and f"cluster_known_nodes:{NODES}" in text

    def node_of(self, key):
        admin = self.nodes[0].admin
        slot, ranges = admin.execute_command("CLUSTER", "KEYSLOT", key), admin.execute_command("CLUSTER", "SHARDS")
        ids = {node.admin.execute_command("CLUSTER", "MYID"): node for node in self.nodes}
        for shard in map(pairs, ranges):
            slots = shard["slots"]
            if any(first <= slot <= last for first, last in zip(slots[::2], slots[1::2])):
                return ids[pairs(shard["nodes"][0])["id"]]

    def move(self, key, source, target):
        """Moves the slot of a key, with its data."""
        slot = source.admin.execute_command("CLUSTER", "KEYSLOT", key)
        ids = {node: node.admin.execute_command("CLUSTER", "MYID") for node in self.nodes}
        target.admin.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while keys := source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *self.nodes):
            node.admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def stop(self):
        for node in self.nodes:
            node.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def locks(cluster, flavor):
    port = cluster.nodes[0].port
    module = redis if flavor.name == "threads" else redis.asyncio
    return flavor.locks(module.RedisCluster(host="127.0.0.1", port=port))


# One key of each node.
KEYS = ["b", "c", "a"]


def test_locks_of_several_nodes(cluster, locks):
    assert len({cluster.node_of(key) for key in KEYS}) == NODES
    holds = [locks.lock(key, fence=True).acquire() for key in KEYS]
    for key, hold in zip(KEYS, holds):
        assert cluster.node_of(key).holder(key)["owner"].encode() == hold.owner and hold.token > 0
        assert len(cluster.node_of(key).sessions()) == 1
    calls = [Call(lambda key=key: locks.lock(key).acquire()) for key in KEYS]
    for key in KEYS:
        until(lambda key=key: cluster.node_of(key).waiters(key) == 1)
    for hold in holds:
        assert hold.guard("SET", f"{{{hold.key.decode()}}}:x", "1")
        hold.extend()
        hold.release()
    for call in calls:
        call.end().release()
    with locks.lock("{a}:1", "{a}:2"):
        pass
    with pytest.raises(Misuse, match="CROSSSLOT"):
        locks.lock("a", "b").acquire()
    locks.close()
    assert all(node.sessions() == [] for node in cluster.nodes)


def test_a_hold_and_a_wait_move_with_their_slot(cluster, locks):
    source = cluster.node_of("a")
    target = next(node for node in cluster.nodes if node is not source)
    hold, leased = locks.lock("a").acquire(), locks.lock("{a}:l", lease=60).acquire()
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: source.waiters("a") == 1)
    cluster.move("a", source, target)
    until(lambda: target.waiters("a") == 1)
    until(lambda: (hold.valid_for() > 0 and leased.valid_for() > 0) or hold.lost or leased.lost)
    assert target.holder("a")["owner"].encode() == hold.owner and not hold.lost, hold._acquire.reason
    assert not leased.lost, leased._acquire.reason
    hold.release()
    leased.release()
    next_hold = call.end()
    assert target.holder("a")["owner"].encode() == next_hold.owner
    next_hold.release()
    assert not target.held("a") and not target.held("{a}:l")


def test_new_locks_find_a_slot_that_moved(cluster, locks):
    source = cluster.node_of("x")
    target = next(node for node in cluster.nodes if node is not source)
    with locks.lock("x"):
        pass
    cluster.move("x", source, target)
    began = time.monotonic()
    for wait in (None, 5, 0):
        hold = locks.lock("x", wait=wait).acquire()
        assert target.holder("x")["owner"].encode() == hold.owner
        hold.release()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("options", [{}, {"lease": 60}], ids=str)
def test_a_release_follows_a_slot(cluster, locks, options):
    source = cluster.node_of("y")
    target = next(node for node in cluster.nodes if node is not source)
    hold = locks.lock("y", **options).acquire()
    cluster.move("y", source, target)
    hold.release()
    until(lambda: not target.held("y"), 5)
    assert not hold.lost


def test_a_node_restarts(cluster, locks):
    node = cluster.node_of("a")
    hold, other = locks.lock("a").acquire(), locks.lock("b").acquire()
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: node.waiters("a") == 1)
    node.restart()
    until(lambda: cluster.is_complete(node), 20)
    until(lambda: node.waiters("a") == 1 or hold.lost or not call.is_alive(), 20)
    assert not hold.lost and call.is_alive(), (hold._acquire.reason, call.error)
    until(lambda: hold.valid_for() > 0 or hold.lost)
    assert not hold.lost and other.valid_for() > 0
    hold.release()
    call.end().release()
    other.release()


def test_a_foreign_write_is_noticed_on_its_node(cluster, locks):
    hold, other = locks.lock("a").acquire(), locks.lock("b").acquire()
    cluster.node_of("a").admin.delete("a")
    assert hold.wait_lost(5) and not other.lost
    with pytest.raises(Lost):
        hold.release()
    other.release()


def replicates(replica, name):
    try:
        return replica.admin.execute_command("CLUSTER", "REPLICATE", name) in (True, "OK")
    except redis.ResponseError:
        return False


def takes_over(replica):
    replica.admin.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    return replica.admin.info("replication")["role"] == "master"


def test_a_replica_takes_over(flavor, tmp_path):
    cluster = Cluster(tmp_path)
    primary = cluster.node_of("a")
    (tmp_path / "replica").mkdir()
    replica = Server(tmp_path / "replica", *WORDS)
    replica.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port)
    name = primary.admin.execute_command("CLUSTER", "MYID")
    until(lambda: name in str(replica.admin.execute_command("CLUSTER", "NODES")), 20)
    until(lambda: replicates(replica, name), 20)
    until(lambda: replica.admin.info("replication")["master_link_status"] == "up", 20)
    until(lambda: replica.admin.cluster("INFO")["cluster_state"] == "ok", 20)
    others = [node for node in cluster.nodes if node is not primary]
    until(lambda: all("slave" in str(node.admin.execute_command("CLUSTER", "NODES")) for node in others), 20)
    module = redis if flavor.name == "threads" else redis.asyncio
    survivor = others[0]
    locks = flavor.locks(module.RedisCluster(host="127.0.0.1", port=survivor.port))
    hold, other = locks.lock("a").acquire(), locks.lock("b").acquire()
    call = Call(lambda: locks.lock("a").acquire())
    until(lambda: primary.waiters("a") == 1)
    primary.admin.execute_command("WAIT", 1, 5000)
    primary.stop()
    fresh = flavor.locks(module.RedisCluster(host="127.0.0.1", port=survivor.port))
    new = Call(lambda: fresh.lock("{a}:new", wait=30).acquire())
    until(lambda: takes_over(replica), 20)
    until(lambda: replica.waiters("a") == 1, 20)
    new.end().release()
    until(lambda: hold.valid_for() > 0)
    assert not hold.lost and not other.lost
    # Nothing calls the old node for ever.
    until(lambda: f"127.0.0.1:{primary.port}" not in hold._core.sessions, 20)
    hold.release()
    call.end().release()
    other.release()
    replica.stop()
    cluster.stop()
