// SPDX-License-Identifier: MIT
package io.github.redislock.redisson;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import org.redisson.api.RFuture;
import org.redisson.client.codec.StringCodec;
import org.redisson.client.protocol.RedisCommands;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.misc.CompletableFutureWrapper;

/**
 * The read lock or the write lock of an {@code RReadWriteLock}: the shared or the exclusive holds of one native lock. Queries
 * concern the holds of that mode only.
 */
public class NativeModeLock extends NativeLock {
    /**
     * A number about the holders of a mode: how many there are, their longest TTL in milliseconds, or the hold count of one. Or
     * whether the lock was taken from them.
     */
    private static final String QUERY = """
            local function fields(list)
              local map = {}
              for i = 1, #list, 2 do map[list[i]] = list[i + 1] end
              return map
            end
            local result = {holders = 0, ttl = -2, holds = 0, broken = 0}
            local info = redis.call('LOCK.INFO', KEYS[1])
            for _, each in ipairs(info and fields(info).holders or {}) do
              local holder = fields(each)
              if holder.mode == ARGV[2] then
                result.holders = result.holders + 1
                result.ttl = math.max(result.ttl, holder.ttl)
                if holder.owner == ARGV[3] then result.holds = holder.holds end
              end
            end
            if ARGV[1] == 'broken' and result.holders > 0 then
              redis.call('LOCK.BREAK', KEYS[1])
              result.broken = 1
            end
            return result[ARGV[1]]
            """;

    private final String mode;

    NativeModeLock(HeldLocks held, CommandAsyncExecutor executor, String name, Kind kind) {
        super(held, executor, name, kind);
        mode = kind == Kind.READ ? "shared" : "exclusive";
    }

    private <T> RFuture<T> query(String field, long thread, Function<Long, T> result) {
        RFuture<Long> reply = executor.evalWriteAsync(
                getRawName(),
                StringCodec.INSTANCE,
                RedisCommands.EVAL_LONG,
                QUERY,
                List.of(getRawName()),
                field,
                mode,
                getLockName(thread));
        return new CompletableFutureWrapper<>(reply.toCompletableFuture().thenApply(result));
    }

    @Override
    public RFuture<Boolean> isExistsAsync() {
        return query("holders", 0, count -> count > 0);
    }

    @Override
    public RFuture<Boolean> isHeldByThreadAsync(long threadId) {
        return query("holds", threadId, count -> count > 0);
    }

    @Override
    public RFuture<Integer> getHoldCountAsync() {
        return query("holds", Thread.currentThread().getId(), Long::intValue);
    }

    @Override
    public RFuture<Long> remainTimeToLiveAsync() {
        return query("ttl", 0, time -> time);
    }

    /** Takes the lock from all holders if some hold it in this mode. */
    @Override
    public RFuture<Boolean> forceUnlockAsync() {
        return query("broken", 0, count -> count > 0);
    }

    @Override
    CompletableFuture<Void> unlockOther(long thread) {
        return CompletableFuture.failedFuture(
                new IllegalMonitorStateException("attempt to unlock lock, not locked by current thread by node id: "
                        + held.client + " thread-id: " + thread));
    }
}
