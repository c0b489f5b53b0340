// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** A real server with the module, on a free port, in a folder of its own. */
public final class Server implements AutoCloseable {
    /** Port on 127.0.0.1. */
    public final int port;
    /** A connection of the test. */
    public final Jedis jedis;

    private final List<String> words;
    private final Path folder;
    private Process process;

    /** Starts a server with these further arguments. */
    public Server(String... more) throws IOException, InterruptedException {
        this(true, more);
    }

    Server(boolean hasModule, String... more) throws IOException, InterruptedException {
        Path module = Path.of(System.getProperty("redislock.module"));
        folder = Files.createTempDirectory("redis-lock-java");
        for (int attempt = 1; ; attempt++) {
            int free;
            try (ServerSocket socket = new ServerSocket(0)) {
                free = socket.getLocalPort();
            }
            List<String> command = new ArrayList<>(List.of("redis-server", "--port", "" + free, "--bind", "127.0.0.1"));
            command.addAll(List.of("--save", "", "--repl-diskless-sync-delay", "0", "--dir", folder.toString()));
            if (hasModule) {
                command.addAll(List.of("--loadmodule", module.toString()));
            }
            command.addAll(List.of(more));
            Process started = start(command);
            Jedis client = connect(started, free);
            if (client != null) {
                port = free;
                words = command;
                process = started;
                jedis = client;
                return;
            }
            if (attempt == 5) {
                throw new IOException(Files.readString(folder.resolve("log")));
            }
        }
    }

    private Process start(List<String> command) throws IOException {
        return new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve("log").toFile())
                .start();
    }

    /** Returns null if another program has taken the port. */
    private static Jedis connect(Process process, int port) throws InterruptedException {
        while (process.isAlive()) {
            Jedis client = new Jedis("127.0.0.1", port);
            try {
                if (client.info("server").contains("process_id:" + process.pid() + "\r")) {
                    return client;
                }
                client.close();
                process.destroyForcibly();
                return null;
            } catch (JedisConnectionException notYet) {
                client.close();
                Thread.sleep(10);
            }
        }
        return null;
    }

    /** The address for a client library. */
    public String uri() {
        return "redis://127.0.0.1:" + port;
    }

    /** Calls a command. */
    public Object call(String... words) {
        String[] rest = List.of(words).subList(1, words.length).toArray(String[]::new);
        return jedis.sendCommand(() -> words[0].getBytes(StandardCharsets.UTF_8), rest);
    }

    /** A field of {@code INFO}. */
    public String info(String field) {
        return jedis.info("everything")
                .lines()
                .filter(line -> line.startsWith(field + ":"))
                .map(line -> line.substring(field.length() + 1))
                .findFirst()
                .orElseThrow();
    }

    /** Ends the server without a chance to save or say anything. */
    public void kill() throws IOException, InterruptedException {
        signal("KILL");
    }

    /** Kills the server and starts it again, without its data. */
    void restart() throws IOException, InterruptedException {
        process.destroyForcibly().onExit().join();
        process = start(words);
        jedis.disconnect();
        Jedis client = connect(process, port);
        assertNotNull(client);
        client.close();
    }

    void signal(String signal) throws IOException, InterruptedException {
        new ProcessBuilder("kill", "-" + signal, "" + process.pid()).start().waitFor();
    }

    @Override
    public void close() throws IOException {
        jedis.close();
        process.destroyForcibly().onExit().join();
        Files.deleteIfExists(folder.resolve("dump.rdb"));
        Files.deleteIfExists(folder.resolve("nodes.conf"));
        Files.deleteIfExists(folder.resolve("log"));
        Files.deleteIfExists(folder);
    }
}
