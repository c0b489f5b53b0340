// SPDX-License-Identifier: MIT
package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.StringWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import javax.tools.JavaCompiler;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The examples of the README compile and run as they are written. */
@Timeout(60)
class ReadmeTest {
    private static final String PROGRAM = """
            import io.github.redislock.*;
            import java.time.Duration;
            import java.util.Optional;
            import java.util.concurrent.CompletableFuture;
            public class Readme {
                static java.util.List<Long> stored = new java.util.ArrayList<>();
                Object ship() { return null; }
                void store(long token) { stored.add(token); }
                void stop() {}
                public void run() throws Exception {
                    %s
                    locks.close();
                }
            }
            """;

    @Test
    void examplesRun(@TempDir Path folder) throws Exception {
        try (Server server = new Server()) {
            String readme = Files.readString(Path.of("..", "README.md"));
            List<String> parts = List.of(readme.split("```java\n", -1));
            String example =
                    parts.stream().skip(1).map(part -> part.split("```", 2)[0]).collect(Collectors.joining());
            assertEquals(6, parts.size());
            assertTrue(example.contains("redis://127.0.0.1\""));
            Path file = folder.resolve("Readme.java");
            Files.writeString(file, PROGRAM.formatted(example.replace("redis://127.0.0.1", server.uri())));
            JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
            StringWriter errors = new StringWriter();
            String classes = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
            List<String> options = List.of("-d", folder.toString(), "-cp", classes);
            boolean compiled = compiler.getTask(
                            errors,
                            null,
                            null,
                            options,
                            null,
                            compiler.getStandardFileManager(null, null, null).getJavaFileObjects(file))
                    .call();
            assertTrue(compiled, errors::toString);
            try (URLClassLoader loader =
                    new URLClassLoader(new URL[] {folder.toUri().toURL()})) {
                Object program = loader.loadClass("Readme").getConstructor().newInstance();
                program.getClass().getMethod("run").invoke(program);
            }
            assertEquals("42", server.jedis.get("result"));
            assertEquals(
                    0,
                    server.jedis.exists(
                            "order:42", "report", "job", "catalogue", "downloads", "account:1", "account:2"));
        }
    }
}
