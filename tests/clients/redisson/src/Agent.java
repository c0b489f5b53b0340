// SPDX-License-Identifier: MIT

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import org.redisson.api.RLock;

/**
 * Does with Redisson what a test says. Each line of standard input is a request, and gets one line of standard
 * output when it is done, which may be after later ones:
 *
 * <pre>
 * id thread client operation arguments…
 * id ok value
 * id error ExceptionSimpleName message
 * </pre>
 *
 * <p>A thread is a separate Java thread, which is created when it is first named. It runs its operations in order,
 * beside the other threads. To Redisson it is an owner of locks. The operations are those of {@link Locks},
 * {@link Clients#connect} and {@link Clients#close}. These are answered at once, even while the thread is busy:
 * <ul>
 *   <li>{@code asleep}: does the thread wait for a message that its lock is free?
 *   <li>{@code stop}: ends the thread's {@code contend} after the round that it is in.
 * </ul>
 *
 * <p>{@code race <locks> <clients> <threads> <milliseconds> <milliseconds>} is a {@link Race}. Its threads use these locks
 * in turn, and in turn these clients, which are connected already. Both words are names, separated by commas.
 *
 * <p>The end of the input ends the program, at once.
 */
public final class Agent {
    private final Clients clients = new Clients();
    private final Map<String, Worker> workers = new HashMap<>();

    public static void main(String[] args) throws IOException {
        Agent agent = new Agent();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.split(" "));
            agent.handle(words.get(0), words.get(1), words.get(2), words.get(3), words.subList(4, words.size()));
        }
        // Nobody is left who could want an orderly end.
        Runtime.getRuntime().halt(0);
    }

    private void handle(String id, String thread, String client, String operation, List<String> arguments) {
        Worker worker = workers.computeIfAbsent(thread, Worker::new);
        switch (operation) {
            case "asleep" -> answer(id, () -> String.valueOf(worker.isAsleep()));
            case "stop" -> answer(id, () -> {
                worker.stop = true;
                return "OK";
            });
            default -> worker.tasks.add(() -> answer(id, () -> perform(worker, client, operation, arguments)));
        }
    }

    private String perform(Worker worker, String client, String operation, List<String> arguments)
            throws Exception {
        switch (operation) {
            case "connect":
                return clients.connect(client, arguments);
            case "close":
                return clients.close(client);
            case "race":
                return race(arguments);
            default:
                String kind = arguments.isEmpty() ? "" : arguments.get(0);
                String name = arguments.size() < 2 ? "" : arguments.get(1);
                List<String> rest = arguments.subList(Math.min(2, arguments.size()), arguments.size());
                Locks locks = new Locks(clients.get(client), kind, name, () -> worker.stop);
                try {
                    return locks.perform(operation, rest);
                } finally {
                    worker.stop = false;
                }
        }
    }

    private String race(List<String> arguments) throws Exception {
        String[] locks = arguments.get(0).split(",");
        String[] names = arguments.get(1).split(",");
        List<Race.Mutex> mutexes = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments.get(2)); i++) {
            RLock lock = clients.get(names[i % names.length]).getLock(locks[i % locks.length]);
            mutexes.add(new Race.Mutex() {
                @Override
                public void lock() {
                    lock.lock();
                }

                @Override
                public void unlock() {
                    lock.unlock();
                }
            });
        }
        return new Race(mutexes).run(Long.parseLong(arguments.get(3)), Long.parseLong(arguments.get(4)));
    }

    private interface Action {
        String run() throws Exception;
    }

    private static void answer(String id, Action action) {
        String answer;
        try {
            answer = id + " ok " + action.run();
        } catch (Throwable error) {
            String cause = error.getCause() == null ? "" : ", because of " + error.getCause();
            answer = id + " error " + error.getClass().getSimpleName() + " " + error.getMessage() + cause;
        }
        synchronized (System.out) {
            System.out.println(answer.replaceAll("\\R", " "));
            System.out.flush();
        }
    }

    /** A thread, and what it has to do. */
    private static final class Worker {
        final LinkedBlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();
        final Thread thread;
        volatile boolean stop;

        Worker(String name) {
            thread = new Thread(this::work, name);
            thread.setDaemon(true);
            thread.start();
        }

        private void work() {
            try {
                while (true) {
                    tasks.take().run();
                }
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        }

        /**
         * Redisson tries twice, before and after it subscribes. Then its lock sleeps on a semaphore until a message
         * arrives or the lease ends. All other waits use futures, and the subscription has semaphores of its own.
         */
        boolean isAsleep() {
            String above = "";
            for (StackTraceElement frame : thread.getStackTrace()) {
                String name = frame.getClassName();
                if (above.equals("java.util.concurrent.Semaphore") && !name.equals(above)) {
                    return name.matches("org\\.redisson\\.Redisson.*Lock");
                }
                above = name;
            }
            return false;
        }
    }
}
