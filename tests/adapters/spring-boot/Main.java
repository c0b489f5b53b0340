// SPDX-License-Identifier: MIT
import io.github.redislock.Locks;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;

@EnableAutoConfiguration
public class Main {
    public static void main(String[] arguments) throws Exception {
        try (var context = SpringApplication.run(Main.class, "--spring.data.redis.url=" + arguments[0])) {
            context.getBean(Locks.class).lock("report").acquire().release();
            System.out.println("held and released");
        }
    }
}
