// SPDX-License-Identifier: MIT
package io.github.redislock.vertx;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.core.VertxException;
import io.vertx.core.shareddata.AsyncMap;
import io.vertx.core.shareddata.Counter;
import io.vertx.core.shareddata.Lock;
import io.vertx.core.spi.cluster.ClusterManager;
import io.vertx.core.spi.cluster.NodeInfo;
import io.vertx.core.spi.cluster.NodeListener;
import io.vertx.core.spi.cluster.NodeSelector;
import io.vertx.core.spi.cluster.RegistrationInfo;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * Adds locks of the redis-lock server module to a cluster manager, for {@code vertx.sharedData().getLock(name)}. They are
 * released when their node leaves the cluster, and within the session's grace after it dies.
 */
public final class RedisLockClusterManager implements ClusterManager {
    private final ClusterManager other;
    private final Locks locks;
    private final String prefix;

    /**
     * Uses keys that begin with {@code vertx:}.
     *
     * @param other does everything except the locks
     * @param locks those of this node alone: they are closed when it leaves the cluster
     */
    public RedisLockClusterManager(ClusterManager other, Locks locks) {
        this(other, locks, "vertx:");
    }

    /** Uses keys with this prefix. */
    public RedisLockClusterManager(ClusterManager other, Locks locks, String prefix) {
        this.other = other;
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public void getLockWithTimeout(String name, long timeout, Promise<Lock> promise) {
        locks.lock(prefix + name)
                .waiting(Duration.ofMillis(timeout))
                // A thread of Vert.x serves many tasks, so it is no owner.
                .owner(UUID.randomUUID().toString())
                .acquireAsync()
                .whenComplete((hold, error) -> {
                    if (error == null) {
                        promise.complete(new Held(hold));
                    } else if (error instanceof LockException known
                            && (known.kind() == LockException.Kind.TIMED_OUT
                                    || known.kind() == LockException.Kind.BUSY)) {
                        promise.fail(new VertxException("Timed out waiting to get lock " + name, error));
                    } else {
                        promise.fail(error);
                    }
                });
    }

    private record Held(Hold hold) implements Lock {
        @Override
        public void release() {
            hold.releaseAsync().whenComplete((done, error) -> {
                if (error != null) {
                    System.getLogger(RedisLockClusterManager.class.getName())
                            .log(System.Logger.Level.WARNING, "a lock was not released: " + error.getMessage());
                }
            });
        }
    }

    @Override
    public void leave(Promise<Void> promise) {
        // Before the other nodes notice that this one has left.
        locks.close();
        other.leave(promise);
    }

    // init(VertxBuilder) remains that of the interface: the other manager would replace this one.
    @Override
    public void init(Vertx vertx, NodeSelector nodeSelector) {
        other.init(vertx, nodeSelector);
    }

    @Override
    public <K, V> void getAsyncMap(String name, Promise<AsyncMap<K, V>> promise) {
        other.getAsyncMap(name, promise);
    }

    @Override
    public <K, V> Map<K, V> getSyncMap(String name) {
        return other.getSyncMap(name);
    }

    @Override
    public void getCounter(String name, Promise<Counter> promise) {
        other.getCounter(name, promise);
    }

    @Override
    public String getNodeId() {
        return other.getNodeId();
    }

    @Override
    public List<String> getNodes() {
        return other.getNodes();
    }

    @Override
    public void nodeListener(NodeListener listener) {
        other.nodeListener(listener);
    }

    @Override
    public void setNodeInfo(NodeInfo nodeInfo, Promise<Void> promise) {
        other.setNodeInfo(nodeInfo, promise);
    }

    @Override
    public NodeInfo getNodeInfo() {
        return other.getNodeInfo();
    }

    @Override
    public void getNodeInfo(String nodeId, Promise<NodeInfo> promise) {
        other.getNodeInfo(nodeId, promise);
    }

    @Override
    public void join(Promise<Void> promise) {
        other.join(promise);
    }

    @Override
    public boolean isActive() {
        return other.isActive();
    }

    @Override
    public void addRegistration(String address, RegistrationInfo registration, Promise<Void> promise) {
        other.addRegistration(address, registration, promise);
    }

    @Override
    public void removeRegistration(String address, RegistrationInfo registration, Promise<Void> promise) {
        other.removeRegistration(address, registration, promise);
    }

    @Override
    public void getRegistrations(String address, Promise<List<RegistrationInfo>> promise) {
        other.getRegistrations(address, promise);
    }

    @Override
    public String clusterHost() {
        return other.clusterHost();
    }

    @Override
    public String clusterPublicHost() {
        return other.clusterPublicHost();
    }
}
