// SPDX-License-Identifier: MIT
package io.github.redislock;

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
        if (reply instanceof Map<?, ?> map) {
            map.forEach((key, value) -> fields.put(text(key), value));
        } else {
            List<?> list = (List<?>) reply;
            if (isPairs(list)) {
                for (Object each : list) {
                    Map.Entry<?, ?> pair = (Map.Entry<?, ?>) each;
                    fields.put(text(pair.getKey()), pair.getValue());
                }
            } else {
                for (int i = 0; i < list.size(); i += 2) {
                    fields.put(text(list.get(i)), list.get(i + 1));
                }
            }
        }
        return fields;
    }

    private static boolean isPairs(Object reply) {
        return reply instanceof List<?> list && !list.isEmpty() && list.get(0) instanceof Map.Entry<?, ?>;
    }

    static String text(Object reply) {
        return reply instanceof byte[] bytes ? Words.text(bytes) : String.valueOf(reply);
    }

    /** A reply for the application: strings in place of bytes. */
    static Object readable(Object reply) {
        if (reply instanceof Map<?, ?> || isPairs(reply)) {
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
