// SPDX-License-Identifier: MIT
import io.github.redislock.LettuceConnector;
import io.github.redislock.Locks;
import io.github.redislock.vertx.RedisLockClusterManager;
import io.vertx.core.Promise;
import io.vertx.core.shareddata.Lock;

public class Main {
    public static void main(String[] arguments) throws InterruptedException {
        try (Locks locks = new Locks(new LettuceConnector(arguments[0]))) {
            // The other cluster manager does everything except the locks.
            RedisLockClusterManager manager = new RedisLockClusterManager(null, locks);
            Promise<Lock> promise = Promise.promise();
            manager.getLockWithTimeout("report", 5000, promise);
            promise.future().toCompletionStage().toCompletableFuture().join().release();
            // Vert.x releases in the background.
            locks.lock("vertx:report").acquire().release();
            System.out.println("held and released");
        }
    }
}
