// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** A network between a client and its server. */
final class Proxy implements AutoCloseable {
    final Set<Connection> connections = ConcurrentHashMap.newKeySet();
    final AtomicInteger accepted = new AtomicInteger();
    /** Drops all data while it is set. A connection that has lost data stays silent. */
    volatile boolean isSilent;

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

    void breakAll() {
        connections.forEach(Connection::close);
    }

    @Override
    public void close() throws IOException {
        listener.close();
        breakAll();
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "proxy");
        thread.setDaemon(true);
        thread.start();
    }

    final class Connection {
        private final Socket client;
        private final Socket upstream = new Socket(InetAddress.getLoopbackAddress(), server);
        private volatile boolean hasLost;

        Connection(Socket client) throws IOException {
            this.client = client;
            client.setTcpNoDelay(true);
            upstream.setTcpNoDelay(true);
        }

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
                    hasLost |= isSilent;
                    if (!hasLost) {
                        out.write(bytes, 0, count);
                    }
                }
            } catch (IOException broken) {
                // The other direction ends as well.
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
