// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Clients with and without native locks. */
@Timeout(60)
class SideBySideTest extends OneServerFixture {
    @Test
    void bothSeeTheHoldsOfTheOther() throws Exception {
        RedissonClient natives = natives();
        RLock ours = natives.getLock("k");
        RLock theirs = redisson().getLock("k");
        for (RLock[] pair : new RLock[][] {{ours, theirs}, {theirs, ours}}) {
            pair[0].lock();
            pair[0].lock();
            assertTrue(pair[1].isLocked());
            assertFalse(pair[1].isHeldByCurrentThread());
            assertTrue(pair[1].remainTimeToLive() > 29_000);
            assertFalse(pair[1].tryLock());
            assertThrows(IllegalMonitorStateException.class, pair[1]::unlock);
            FutureTask<Boolean> wait = thread(() -> {
                pair[1].lock();
                pair[1].unlock();
                return true;
            });
            Thread.sleep(50);
            pair[0].unlock();
            assertFalse(wait.isDone());
            pair[0].unlock();
            assertTrue(wait.get(5, SECONDS));
            pair[0].lock(100, java.util.concurrent.TimeUnit.MILLISECONDS);
            assertTrue(elsewhere(() -> pair[1].tryLock(5, SECONDS)));
            assertTrue(pair[0].forceUnlock());
        }
    }

    /** The two clients have the same owners. */
    @Test
    void rollBackOfOneClientUnlocksWhatTheOtherLocked() throws Exception {
        RedissonClient plain = redisson();
        RLock ours = NativeLocks.of(plain).getLock("k");
        RLock theirs = plain.getLock("k");
        theirs.lock();
        assertTrue(ours.tryLock());
        assertEquals(2, theirs.getHoldCount());
        ours.unlock();
        assertTrue(theirs.isHeldByCurrentThread());
        ours.unlock();
        assertFalse(theirs.isLocked());
        ours.lock();
        theirs.unlock();
        assertFalse(ours.isLocked());
        until("the loss is known", () -> {
            try {
                ours.unlock();
                return false;
            } catch (IllegalMonitorStateException refused) {
                return true;
            }
        });
    }

    @Test
    void countsAreExactAndNoneStarves() throws Exception {
        List<RedissonClient> clients = List.of(natives(), redisson(), natives(), redisson());
        AtomicInteger inside = new AtomicInteger();
        int[] total = new int[1];
        List<FutureTask<Integer>> all = new ArrayList<>();
        long until = System.nanoTime() + SECONDS.toNanos(2);
        for (int number = 0; number < 16; number++) {
            RLock lock = clients.get(number % 4).getLock("k");
            all.add(thread(() -> {
                int count = 0;
                while (System.nanoTime() - until < 0) {
                    lock.lock();
                    assertEquals(1, inside.incrementAndGet());
                    total[0]++;
                    count++;
                    inside.decrementAndGet();
                    lock.unlock();
                }
                return count;
            }));
        }
        int natives = 0;
        int others = 0;
        for (int number = 0; number < all.size(); number++) {
            int count = all.get(number).get(30, SECONDS);
            if (number % 2 == 0) {
                natives += count;
            } else {
                others += count;
            }
        }
        assertEquals(total[0], natives + others);
        assertTrue(Math.min(natives, others) > total[0] / 15, natives + " native, " + others + " others");
    }

    /** A process that counts to a value in the server without an atomic command, and prints how often it did. */
    static final class Counting {
        public static void main(String[] words) {
            // After an error, Redisson's threads would keep the process alive.
            Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            });
            Config config = new Config();
            single(config, words[0]);
            RedissonClient plain = Redisson.create(config);
            RedissonClient locks = words[1].equals("native") ? NativeLocks.of(plain) : plain;
            RBucket<String> total = plain.getBucket("total", StringCodec.INSTANCE);
            RLock lock = locks.getLock("k");
            int count = 0;
            // The others have begun by then.
            RAtomicLong begun = plain.getAtomicLong("begun");
            begun.incrementAndGet();
            while (begun.get() < Integer.parseInt(words[2])) {
                Thread.onSpinWait();
            }
            for (long until = System.nanoTime() + SECONDS.toNanos(1); System.nanoTime() - until < 0; count++) {
                lock.lock();
                total.set("" + (Integer.parseInt(total.get()) + 1));
                lock.unlock();
            }
            locks.shutdown(0, 2, SECONDS);
            System.out.println("count " + count);
        }
    }

    @Test
    void processesCountExactly() throws Exception {
        server.jedis.set("total", "0");
        List<Process> all = new ArrayList<>();
        for (String kind : List.of("native", "plain", "native", "plain")) {
            all.add(new ProcessBuilder(
                            ProcessHandle.current().info().command().orElseThrow(),
                            "-cp",
                            System.getProperty("java.class.path"),
                            Counting.class.getName(),
                            server.uri(),
                            kind,
                            "4")
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start());
        }
        try {
            int total = 0;
            for (Process each : all) {
                String said = new String(each.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
                int count = Integer.parseInt(said.split("count ", 2)[1].strip());
                assertTrue(count > 0);
                total += count;
            }
            assertEquals("" + total, server.jedis.get("total"));
        } finally {
            all.forEach(Process::destroyForcibly);
        }
    }
}
