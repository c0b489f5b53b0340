// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.lang.reflect.Method;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.InvocationInterceptor;
import org.junit.jupiter.api.extension.ReflectiveInvocationContext;

/** The tests of locks on virtual threads. */
@Timeout(60)
@EnabledForJreRange(min = JRE.JAVA_21, disabledReason = "virtual threads need Java 21")
@ExtendWith(VirtualThreadsTest.OnVirtualThread.class)
class VirtualThreadsTest extends LocksTest {
    static final class OnVirtualThread implements InvocationInterceptor {
        @Override
        public void interceptTestMethod(
                Invocation<Void> test, ReflectiveInvocationContext<Method> method, ExtensionContext context)
                throws Throwable {
            CompletableFuture<Void> end = new CompletableFuture<>();
            Runnable body = () -> {
                try {
                    test.proceed();
                    end.complete(null);
                } catch (Throwable failure) {
                    end.completeExceptionally(failure);
                }
            };
            Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, body);
            try {
                end.join();
            } catch (CompletionException failure) {
                throw failure.getCause();
            }
        }

        @Override
        public void interceptTestTemplateMethod(
                Invocation<Void> test, ReflectiveInvocationContext<Method> method, ExtensionContext context)
                throws Throwable {
            interceptTestMethod(test, method, context);
        }
    }
}
