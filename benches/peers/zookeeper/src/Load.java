// SPDX-License-Identifier: MIT

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Uses the locks of a ZooKeeper server for the benchmark {@code peers}. The argument is the address of the server. Each line
 * of standard input is a request, and gets one line of standard output when it is done:
 *
 * <pre>
 * connect &lt;clients&gt;                          connected
 * race &lt;clients&gt; &lt;locks&gt; &lt;warm-up ms&gt; &lt;ms&gt;   the answer of a {@link Race}
 * lock &lt;name&gt;                                locked
 * </pre>
 *
 * <p>Each client has its own connection and its own session with Curator's default timeout. The end of the input ends the
 * program.
 */
public final class Load {
    private final String address;
    private final List<CuratorFramework> clients = new ArrayList<>();

    private Load(String address) {
        this.address = address;
    }

    public static void main(String[] args) throws IOException {
        Load load = new Load(args[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int status = 0;
        try {
            for (String line; (line = input.readLine()) != null; ) {
                System.out.println(load.perform(line.split(" ")));
                System.out.flush();
            }
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        Runtime.getRuntime().halt(status);
    }

    private String perform(String[] words) throws Exception {
        switch (words[0]) {
            case "connect" -> {
                connect(Integer.parseInt(words[1]));
                return "connected";
            }
            case "race" -> {
                return race(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3]),
                        Long.parseLong(words[4]));
            }
            case "lock" -> {
                connect(1);
                new InterProcessMutex(clients.get(0), "/" + words[1]).acquire();
                return "locked";
            }
            default -> throw new IllegalArgumentException("unknown request " + words[0]);
        }
    }

    /** Connects clients until there are this many. */
    private void connect(int count) throws InterruptedException {
        while (clients.size() < count) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(100, 10));
            client.start();
            client.blockUntilConnected();
            clients.add(client);
        }
    }

    private String race(int threads, int locks, long warmUp, long time) throws Exception {
        connect(threads);
        List<Race.Mutex> mutexes = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            InterProcessMutex mutex = new InterProcessMutex(clients.get(i), "/race/" + i % locks);
            mutexes.add(new Race.Mutex() {
                @Override
                public void lock() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void unlock() throws Exception {
                    mutex.release();
                }
            });
        }
        return new Race(mutexes).run(warmUp, time);
    }
}
