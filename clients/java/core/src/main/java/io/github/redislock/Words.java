// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;

/** A command and its arguments. */
final class Words extends ArrayList<byte[]> {
    private static final long serialVersionUID = 1;

    static Words of(Object... words) {
        return new Words().and(words);
    }

    /** Appends words: strings of ASCII, integers, or bytes. */
    Words and(Object... words) {
        for (Object word : words) {
            add(word instanceof byte[] bytes ? bytes : word.toString().getBytes(StandardCharsets.US_ASCII));
        }
        return this;
    }
}
