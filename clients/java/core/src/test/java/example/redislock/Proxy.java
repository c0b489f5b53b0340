// SPDX-License-Identifier: MIT
package example.redislock;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** A network between client and server. */
final class Proxy implements AutoCloseable {
    /** How clients have ended connections: {@code reset} or {@code closed}. */
    final Queue<String> ends = new ConcurrentLinkedQueue<>();
    /** Those that are open. */
    final Set<Connection> connections = ConcurrentHashMap.newKeySet();

    final AtomicInteger accepted = new AtomicInteger();
    /** What is sent comes nowhere. A connection that has lost something stays so. */
    volatile boolean silent;

    private final ServerSocket listener = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final int server;

    Proxy(int server) throws IOException {
        this.server = server;
        start(() -> {
            while (!listener.isClosed()) {
                try {
                    Socket client = listener.accept();
                    accepted.incrementAndGet();
                    new Connection(client).open();
                } catch (IOException closed) {
                    // By the test, or the server is away.
                }
            }
        });
    }

    String uri() {
        return "redis://127.0.0.1:" + listener.getLocalPort();
    }

    /** The connections for messages carry nothing more, and nobody is told. */
    void silenceMessages() {
        connections.stream().filter(one -> one.hears).forEach(one -> one.silent = true);
    }

    /** The connections that there are carry nothing more, and nobody is told. New ones do. */
    void silencePresent() {
        connections.forEach(one -> one.silent = true);
    }

    /** Ends all connections in the hardest way. */
    void reset() {
        for (Connection one : connections) {
            try {
                one.client.setSoLinger(true, 0);
            } catch (SocketException closed) {
                // It has ended at this moment.
            }
            one.close();
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
        connections.forEach(Connection::close);
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "proxy");
        thread.setDaemon(true);
        thread.start();
    }

    final class Connection {
        private final Socket client;
        private final Socket upstream = new Socket(InetAddress.getLoopbackAddress(), server);
        private volatile boolean hears;
        private volatile boolean silent;

        Connection(Socket client) throws IOException {
            this.client = client;
            client.setTcpNoDelay(true);
            upstream.setTcpNoDelay(true);
        }

        /** It may end at once: so it is known before. */
        private void open() {
            connections.add(this);
            start(() -> carry(client, upstream));
            start(() -> carry(upstream, client));
        }

        private void carry(Socket from, Socket to) {
            byte[] bytes = new byte[65536];
            try {
                InputStream in = from.getInputStream();
                OutputStream out = to.getOutputStream();
                for (int count = in.read(bytes); count > 0; count = in.read(bytes)) {
                    hears |= new String(bytes, 0, count, StandardCharsets.UTF_8).contains("SUBSCRIBE");
                    silent |= Proxy.this.silent;
                    if (!silent) {
                        out.write(bytes, 0, count);
                    }
                }
                ended(from, "closed");
            } catch (SocketException broken) {
                ended(from, "reset");
            } catch (IOException broken) {
                ended(from, "broken");
            }
        }

        private void ended(Socket from, String how) {
            // The other direction ends by this.
            if (connections.contains(this) && from == client) {
                ends.add(how);
            }
            close();
        }

        private void close() {
            connections.remove(this);
            for (Socket socket : new Socket[] {client, upstream}) {
                try {
                    socket.close();
                } catch (IOException broken) {
                    // It is closed all the same.
                }
            }
        }
    }
}
