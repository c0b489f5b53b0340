// SPDX-License-Identifier: MIT
package io.github.redislock;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Shapes of replies. */
final class Replies {
    private Replies() {}

    static List<Long> longs(Object reply) {
        List<?> values = reply instanceof List<?> list ? list : List.of(reply);
        return values.stream().map(Long.class::cast).toList();
    }

    /** A map is a list in RESP2, and a map or a list of pairs in RESP3. */
    static Map<String, Object> map(Object reply) {
        Map<String, Object> fields = new LinkedHashMap<>();
        Iterator<?> all = (reply instanceof Map<?, ?> map ? map.entrySet() : (List<?>) reply).iterator();
        while (all.hasNext()) {
            Object each = all.next();
            if (each instanceof Map.Entry<?, ?> pair) {
                fields.put(text(pair.getKey()), pair.getValue());
            } else {
                fields.put(text(each), all.next());
            }
        }
        return fields;
    }

    private static boolean isMap(Object reply) {
        return reply instanceof Map<?, ?>
                || (reply instanceof List<?> list && !list.isEmpty() && list.get(0) instanceof Map.Entry<?, ?>);
    }

    static String text(Object reply) {
        return reply instanceof byte[] bytes ? Words.text(bytes) : String.valueOf(reply);
    }

    /** A reply for the application: strings in place of bytes. */
    static Object readable(Object reply) {
        if (isMap(reply)) {
            Map<String, Object> fields = map(reply);
            fields.replaceAll((key, value) -> readable(value));
            return fields;
        }
        if (reply instanceof List<?> list) {
            return list.stream().map(Replies::readable).toList();
        }
        return reply instanceof byte[] ? text(reply) : reply;
    }
}
