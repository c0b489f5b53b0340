// SPDX-License-Identifier: MIT

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.redisson.api.RLock;

/** Threads that race for one lock: each of them locks and unlocks, and does nothing between. */
final class Race {
    private final List<RLock> locks;
    private volatile boolean measuring;
    private volatile boolean over;

    // Both are written by the holder, before it unlocks.
    private volatile long unlocked;
    private volatile Thread unlocker;

    /** The lock, of each of the clients that the threads use in turn. */
    Race(List<RLock> locks) {
        this.locks = locks;
    }

    /**
     * Runs a race of threads for some milliseconds, after a warm-up. Returns
     * {@code <all grants> <counted grants> <nanoseconds…>}. The times are hand-overs, from just before an unlock until
     * another thread has the lock: a thousand quantiles, in ascending order.
     */
    String run(int threads, long warmUp, long time) throws InterruptedException {
        List<Racer> racers = new ArrayList<>();
        CountDownLatch start = new CountDownLatch(1);
        for (int i = 0; i < threads; i++) {
            Racer racer = new Racer(locks.get(i % locks.size()), start);
            racer.setDaemon(true);
            racer.start();
            racers.add(racer);
        }
        start.countDown();
        Thread.sleep(warmUp);
        measuring = true;
        Thread.sleep(time);
        measuring = false;
        over = true;
        long all = 0;
        long counted = 0;
        for (Racer racer : racers) {
            racer.join();
            if (racer.failure != null) {
                throw racer.failure;
            }
            all += racer.all;
            counted += racer.counted;
        }
        long[] nanos = racers.stream().flatMapToLong(racer -> Arrays.stream(racer.nanos, 0, racer.used))
                .sorted().toArray();
        String steps = IntStream.rangeClosed(0, nanos.length == 0 ? -1 : 1000)
                .mapToObj(step -> String.valueOf(nanos[(int) ((nanos.length - 1) * (long) step / 1000)]))
                .collect(Collectors.joining(" "));
        return (all + " " + counted + " " + steps).trim();
    }

    private final class Racer extends Thread {
        private final RLock lock;
        private final CountDownLatch start;
        private long all;
        private long counted;
        private long[] nanos = new long[1024];
        private int used;
        private RuntimeException failure;

        Racer(RLock lock, CountDownLatch start) {
            this.lock = lock;
            this.start = start;
        }

        @Override
        public void run() {
            try {
                start.await();
                while (!over) {
                    round();
                }
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            } catch (RuntimeException error) {
                failure = error;
            }
        }

        private void round() {
            lock.lock();
            long now = System.nanoTime();
            all++;
            if (measuring) {
                counted++;
                if (unlocker != null && unlocker != this) {
                    add(now - unlocked);
                }
            }
            unlocker = this;
            unlocked = System.nanoTime();
            lock.unlock();
        }

        private void add(long time) {
            if (used == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * used);
            }
            nanos[used++] = time;
        }
    }
}
