// SPDX-License-Identifier: MIT

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** Threads that race for locks: each of them locks and unlocks, and does nothing between. */
final class Race {
    /** A lock of one thread. */
    interface Mutex {
        void lock() throws Exception;

        void unlock() throws Exception;
    }

    private final List<Mutex> mutexes;
    private volatile boolean measuring;
    /** The end of the measured time; 0 before it. */
    private volatile long end;
    private volatile boolean over;

    // Both are written by the holder, before it unlocks.
    private volatile long unlocked;
    private volatile Thread unlocker;

    /** Has a thread for each of these, which may be the same lock. */
    Race(List<Mutex> mutexes) {
        this.mutexes = mutexes;
    }

    /**
     * Runs the race for some milliseconds, after a warm-up. Returns
     * {@code <all grants> <counted grants> <hand-overs> <waits>}. A hand-over lasts from just before an unlock until
     * another thread has the lock, which has a meaning only if all threads use one lock. A wait lasts from the call until
     * the grant, or until the end of the measured time. Both are given as a thousand quantiles in nanoseconds, in
     * ascending order and separated by commas, or as {@code -} without any.
     */
    String run(long warmUp, long time) throws Exception {
        List<Racer> racers = new ArrayList<>();
        CountDownLatch start = new CountDownLatch(1);
        for (Mutex mutex : mutexes) {
            Racer racer = new Racer(mutex, start);
            racer.setDaemon(true);
            racer.start();
            racers.add(racer);
        }
        start.countDown();
        Thread.sleep(warmUp);
        measuring = true;
        Thread.sleep(time);
        measuring = false;
        end = System.nanoTime();
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
        return all + " " + counted + " " + steps(racers.stream().map(racer -> racer.handOvers)) + " "
                + steps(racers.stream().map(racer -> racer.waits));
    }

    private static String steps(Stream<Times> times) {
        long[] nanos = times.flatMapToLong(some -> Arrays.stream(some.nanos, 0, some.used)).sorted().toArray();
        return nanos.length == 0 ? "-" : IntStream.rangeClosed(0, 1000)
                .mapToObj(step -> String.valueOf(nanos[(int) ((nanos.length - 1) * (long) step / 1000)]))
                .collect(Collectors.joining(","));
    }

    private static final class Times {
        private long[] nanos = new long[1024];
        private int used;

        void add(long time) {
            if (used == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * used);
            }
            nanos[used++] = time;
        }
    }

    private final class Racer extends Thread {
        private final Mutex mutex;
        private final CountDownLatch start;
        private final Times handOvers = new Times();
        private final Times waits = new Times();
        private long all;
        private long counted;
        private Exception failure;

        Racer(Mutex mutex, CountDownLatch start) {
            this.mutex = mutex;
            this.start = start;
        }

        @Override
        public void run() {
            try {
                start.await();
                while (!over) {
                    round();
                }
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            } catch (Exception error) {
                failure = error;
            }
        }

        private void round() throws Exception {
            long asked = System.nanoTime();
            mutex.lock();
            long now = System.nanoTime();
            all++;
            if (measuring) {
                counted++;
                waits.add(now - asked);
                if (unlocker != null && unlocker != this) {
                    handOvers.add(now - unlocked);
                }
            } else if (over && end - asked > 0) {
                waits.add(end - asked);
            }
            unlocker = this;
            unlocked = System.nanoTime();
            mutex.unlock();
        }
    }
}
