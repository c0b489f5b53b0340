// SPDX-License-Identifier: MIT
package io.github.redislock.vertx;

import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.Server;
import io.vertx.core.shareddata.ClusteredAsynchronousLockTest;
import io.vertx.core.spi.cluster.ClusterManager;
import io.vertx.test.fakecluster.FakeClusterManager;
import org.junit.AfterClass;
import org.junit.Assert;
import org.junit.BeforeClass;
import org.junit.Test;

/** Vert.x's own tests, among them two that it asks of cluster managers whose locks end with their node. */
public class RedisLockClusterManagerTest extends ClusteredAsynchronousLockTest {
    private static Server server;

    @BeforeClass
    public static void start() throws Exception {
        server = new Server();
    }

    @AfterClass
    public static void nothingStays() throws Exception {
        Assert.assertEquals("0", server.info("lock_waiters"));
        Assert.assertTrue(server.jedis.keys("vertx:*").isEmpty());
        // If a test is repeated, it is the only one, and perhaps has no waits.
        Assert.assertTrue(server.jedis.info("commandstats").contains("cmdstat_lock.acquire:"));
        server.close();
    }

    @Override
    protected ClusterManager getClusterManager() {
        return new RedisLockClusterManager(new FakeClusterManager(), new Locks(new LettuceConnector(server.uri())));
    }

    @Test
    public void testTheLongestTimeout() {
        vertices[0].sharedData().getLockWithTimeout("long", Long.MAX_VALUE).onComplete(onSuccess(lock -> {
            lock.release();
            testComplete();
        }));
        await();
    }

    @Test
    @Override
    public void testLockReleasedForClosedNode() throws Exception {
        super.testLockReleasedForClosedNode();
    }

    @Test
    @Override
    public void testLockReleasedForKilledNode() throws Exception {
        super.testLockReleasedForKilledNode();
    }
}
