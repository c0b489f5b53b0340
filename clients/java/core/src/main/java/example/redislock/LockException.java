// SPDX-License-Identifier: MIT
package example.redislock;

import java.util.concurrent.CompletionException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What can go wrong with a lock: one of seven kinds. The text is the server's where it said something. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Pattern WORD = Pattern.compile("([A-Z]{2,}) .*", Pattern.DOTALL);

    /** What went wrong. */
    public enum Kind {
        /** Somebody else holds the lock, and the call was not to wait. */
        BUSY,
        /** The lock was not granted in the time to wait. */
        TIMED_OUT,
        /** The caller gave up. */
        CANCELLED,
        /** The hold ended before it was given back: others may have worked at the same time. */
        LOST,
        /** Waiting could never end; the text has the cycle. */
        DEADLOCK,
        /** What the call says is wrong: an option out of range, a key of another type, no permission. */
        MISUSE,
        /** No connection, or a server that grants nothing now. */
        UNAVAILABLE;

        /** In the words of the documentation and of events: {@code timed out}. */
        public String words() {
            return name().toLowerCase(java.util.Locale.ROOT).replace('_', ' ');
        }
    }

    private final Kind kind;

    LockException(Kind kind, String text) {
        super(text);
        this.kind = kind;
    }

    /** What went wrong. */
    public Kind kind() {
        return kind;
    }

    boolean is(Kind other) {
        return kind == other;
    }

    /** Whether its text begins so: these are the server's words. */
    boolean says(String word) {
        return String.valueOf(getMessage()).startsWith(word);
    }

    /** Who waits goes on. */
    boolean passes() {
        return this instanceof Disconnected || this instanceof NotYet || this instanceof Passing;
    }

    /** The hold ended before it was given back. */
    public static final class Lost extends LockException {
        private static final long serialVersionUID = 1;

        Lost(String text) {
            super(Kind.LOST, text);
        }
    }

    /** It must not be sent yet. */
    static final class NotYet extends LockException {
        private static final long serialVersionUID = 1;

        NotYet(String text) {
            super(Kind.UNAVAILABLE, text);
        }
    }

    /** A server that is there can do nothing now: after a failover it has no replicas yet, or a script runs for long. */
    static final class Passing extends LockException {
        private static final long serialVersionUID = 1;

        Passing(String text) {
            super(Kind.UNAVAILABLE, text);
        }
    }

    /** No reply came, or one of a server that serves nobody: on the next connection the call may be sent again. */
    static final class Disconnected extends LockException {
        private static final long serialVersionUID = 1;

        /** Whether it is a server's word, which the next connection may bring again. */
        final boolean isTold;

        Disconnected(String text) {
            this(text, false);
        }

        private Disconnected(String text, boolean isTold) {
            super(Kind.UNAVAILABLE, text);
            this.isTold = isTold;
        }
    }

    /** What the server says to one connection too many. The next may be let in. */
    static final String FULL = "max number of clients";

    private static final String SENT_AGAIN = "the same request was sent again";

    /** Of what the server or the client library said. */
    static LockException of(Throwable cause) {
        if (cause instanceof CompletionException && cause.getCause() != null) {
            return of(cause.getCause());
        }
        if (cause instanceof LockException known) {
            return known;
        }
        if (!(cause instanceof Wire.ServerError)) {
            LockException lost = new Disconnected("the connection is lost: " + cause);
            lost.initCause(cause);
            return lost;
        }
        String text = String.valueOf(cause.getMessage());
        Matcher matcher = WORD.matcher(text);
        return switch (matcher.matches() ? matcher.group(1) : "") {
            case "READONLY", "MASTERDOWN", "LOADING" -> new Disconnected(text, true);
            // An older call has come after the last; or another server has the lock now, in Redis' words and in the
            // module's. Whom somebody unblocks is told otherwise.
            case "UNBLOCKED" ->
                text.contains(SENT_AGAIN)
                        ? new Disconnected(text)
                        : text.contains("instance state changed") || text.contains("send the command")
                                ? new Disconnected(text, true)
                                : new LockException(Kind.UNAVAILABLE, text);
            case "NOREPLICAS", "BUSY" -> new Passing(text);
            case "NOTOWNER" -> new Lost(text);
            case "DEADLOCK" -> new LockException(Kind.DEADLOCK, text);
            case "ERR", "WRONGTYPE", "NOPERM" ->
                text.contains(FULL)
                        ? new Disconnected(text)
                        : new LockException(text.contains("too many") ? Kind.UNAVAILABLE : Kind.MISUSE, text);
            default -> new LockException(Kind.UNAVAILABLE, text);
        };
    }

    /** Of what came in reply to a guarded command, whose own word may be that of a server that serves nobody. */
    static LockException guarded(Throwable cause) {
        LockException error = of(cause);
        // It has a cause if nobody said it.
        return error instanceof Disconnected && error.getCause() == null
                ? new LockException(Kind.UNAVAILABLE, error.getMessage())
                : error;
    }

    static LockException misuse(String text) {
        return new LockException(Kind.MISUSE, text);
    }
}
