// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** A failure of a lock, of one of seven kinds. Its text includes that of the server. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Set<String> TRANSIENT = Set.of(
            ("NOSESSION LATE READONLY LOADING NOREPLICAS MISCONF BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN QUARANTINE UNBLOCKED MOVED"
                            + " ASK")
                    .split(" "));
    private static final Map<String, Kind> KINDS = Map.of(
            "NOTOWNER", Kind.LOST,
            "DEADLOCK", Kind.DEADLOCK,
            "CANCELLED", Kind.CANCELLED,
            "ERR", Kind.MISUSE,
            "WRONGTYPE", Kind.MISUSE,
            "NOPERM", Kind.MISUSE,
            "NOAUTH", Kind.MISUSE,
            "WRONGPASS", Kind.MISUSE,
            "CROSSSLOT", Kind.MISUSE);

    /** Kinds of failures. */
    public enum Kind {
        /** Another owner holds the lock, and the call does not wait. */
        BUSY,
        /** The wait reached its limit without a grant. */
        TIMED_OUT,
        /** The caller cancelled the call, or {@link Locks} was closed. */
        CANCELLED,
        /** The hold ended before its release: another owner may have worked at the same time. */
        LOST,
        /** Waiting could never end, or the owner has the lock already. */
        DEADLOCK,
        /** The call is wrong: an option, a key of another type, a missing permission, a server without the module. */
        MISUSE,
        /** No server answered in time, or the server grants nothing now. */
        UNAVAILABLE;

        /** The name in events and in the documentation, such as {@code timed out}. */
        public String words() {
            return name().toLowerCase(Locale.ROOT).replace('_', ' ');
        }
    }

    /** The hold ended before its release. */
    public static final class Lost extends LockException {
        private static final long serialVersionUID = 1;

        Lost(String code, String text, Throwable cause, boolean traced) {
            super(Kind.LOST, code, text, cause, traced);
        }
    }

    private final Kind kind;
    /** The error code of the server, or empty. */
    private final String code;

    private LockException(Kind kind, String code, String text, Throwable cause, boolean traced) {
        super(text, cause, true, traced);
        this.kind = kind;
        this.code = code;
    }

    /** The kind of this failure. */
    public Kind kind() {
        return kind;
    }

    /** The error code of the server, such as {@code NOTOWNER}, or an empty string. */
    public String code() {
        return code;
    }

    boolean is(String other) {
        return code.equals(other);
    }

    /** Whether a reply is an error with this code. */
    static boolean is(Object reply, String code) {
        return reply instanceof LockException error && error.is(code);
    }

    /** Whether the same call may succeed soon. */
    boolean isTransient() {
        return kind == Kind.UNAVAILABLE && (code.isEmpty() || TRANSIENT.contains(code));
    }

    static LockException of(Kind kind, String text) {
        return make(kind, "", text, null, true);
    }

    static LockException misuse(String text) {
        return of(Kind.MISUSE, text);
    }

    static LockException noReply(Throwable cause) {
        return make(Kind.UNAVAILABLE, "", "no reply from the server: " + cause, cause, false);
    }

    /** The failure that an error reply means. Nobody sees where it arrived, so it has no stack trace. */
    static LockException ofReply(String reply) {
        String text = String.valueOf(reply);
        String code = text.split(" ", 2)[0];
        if (code.equals("ERR") && text.contains("unknown command")) {
            text = "the server has no LOCK commands; load the redis-lock module";
        }
        return make(KINDS.getOrDefault(code, Kind.UNAVAILABLE), code, text, null, false);
    }

    /** A copy for one caller, with the stack trace of that caller. */
    LockException forCaller(String lock) {
        String text = getMessage().startsWith(lock) ? getMessage() : lock + ": " + getMessage();
        return make(kind, code, text, getCause(), true);
    }

    private static LockException make(Kind kind, String code, String text, Throwable cause, boolean traced) {
        return kind == Kind.LOST
                ? new Lost(code, text, cause, traced)
                : new LockException(kind, code, text, cause, traced);
    }
}
