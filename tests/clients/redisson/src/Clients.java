// SPDX-License-Identifier: MIT

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;

/** The Redisson clients of this process, by the names that the test gave them. */
final class Clients {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();

    RedissonClient get(String name) {
        RedissonClient client = clients.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no client " + name + " is connected");
        }
        return client;
    }

    /**
     * {@code single <address>}, {@code master-slave <master> <slave,slave…>},
     * {@code sentinel <master's name> <sentinel,sentinel…>} or {@code cluster <node,node…>}, and then
     * {@code setting=value…}. Settings are named as Redisson's setters are, and are left as they come otherwise.
     */
    String connect(String name, List<String> arguments) throws ReflectiveOperationException {
        Config config = new Config();
        Object servers;
        int used = 2;
        switch (arguments.get(0)) {
            case "single":
                servers = config.useSingleServer().setAddress(arguments.get(1));
                break;
            case "master-slave":
                servers = config.useMasterSlaveServers().setMasterAddress(arguments.get(1))
                        .addSlaveAddress(arguments.get(2).split(","));
                used = 3;
                break;
            case "sentinel":
                SentinelServersConfig sentinels = config.useSentinelServers().setMasterName(arguments.get(1));
                sentinels.addSentinelAddress(arguments.get(2).split(","));
                servers = sentinels;
                used = 3;
                break;
            case "cluster":
                ClusterServersConfig cluster = config.useClusterServers();
                cluster.addNodeAddress(arguments.get(1).split(","));
                servers = cluster;
                break;
            default:
                throw new IllegalArgumentException(arguments.get(0));
        }
        for (String setting : arguments.subList(used, arguments.size())) {
            String[] parts = setting.split("=", 2);
            if (!set(servers, parts[0], parts[1]) && !set(config, parts[0], parts[1])) {
                throw new IllegalArgumentException("this Redisson has no setting " + parts[0]);
            }
        }
        RedissonClient client = Redisson.create(config);
        if (clients.putIfAbsent(name, client) != null) {
            throw new IllegalArgumentException("there is a client " + name + " already");
        }
        return client.getId();
    }

    /** False if there is no such setting here. */
    private static boolean set(Object target, String name, String value) throws ReflectiveOperationException {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : target.getClass().getMethods()) {
            if (!method.getName().equals(setter) || method.getParameterCount() != 1) {
                continue;
            }
            try {
                method.invoke(target, parsed(method.getParameterTypes()[0], value));
                return true;
            } catch (InvocationTargetException error) {
                throw new IllegalArgumentException(name + "=" + value, error.getCause());
            }
        }
        return false;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object parsed(Class<?> type, String value) {
        if (type == int.class) {
            return Integer.parseInt(value);
        } else if (type == long.class) {
            return Long.parseLong(value);
        } else if (type == boolean.class) {
            return Boolean.parseBoolean(value);
        } else if (type.isEnum()) {
            return Enum.valueOf((Class<? extends Enum>) type, value);
        }
        return value;
    }

    String close(String name) {
        RedissonClient client = get(name);
        clients.remove(name);
        client.shutdown();
        return "OK";
    }
}
