#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a primary for locks, two replicas and three Sentinels on one machine. If the primary fails, they promote a replica.
#
#   sh docs/setups/sentinel.sh start | status | stop | clean
#
# See common.sh for the options.

PORT=${PORT:-7100}
servers="$PORT $((PORT + 1)) $((PORT + 2))"
sentinels="$((PORT + 3)) $((PORT + 4)) $((PORT + 5))"
ports="$sentinels $servers"
offsets=0
. "$(dirname -- "$0")/common.sh"

# Prints the port of the primary that the first running Sentinel knows.
primary() {
    for port in $sentinels; do
        "$CLI" -p "$port" SENTINEL GET-MASTER-ADDR-BY-NAME locks 2>/dev/null | sed -n 2p | grep . && return
    done
    echo "no Sentinel is running" >&2
    return 1
}

if [ "$1" = status ]; then
    primary=$(primary)
    echo "primary: 127.0.0.1 $primary"
    exit
fi
for port in $servers; do
    {
        server_config "$port"
        [ "$port" = "$PORT" ] || echo "replicaof 127.0.0.1 $PORT"
    } | launch "$port" ""
done
for port in $sentinels; do
    launch "$port" --sentinel <<END
port $port
dir $DIR/$port
pidfile $DIR/$port/pid
logfile $DIR/$port/log
daemonize yes
bind 127.0.0.1
sentinel monitor locks 127.0.0.1 $PORT 2
# A primary counts as failed after this time without a reply. Leases should be longer.
sentinel down-after-milliseconds locks 3000
sentinel failover-timeout locks 10000
END
done
for port in $sentinels; do
    wait_for_reply "num-slaves
2" "$port" SENTINEL MASTER locks
    wait_for_reply "num-other-sentinels
2" "$port" SENTINEL MASTER locks
done
# shellcheck disable=SC2086
wait_for_replicas 2 $servers
echo "primary: 127.0.0.1 $(primary); Sentinels on $sentinels know it as locks"
echo "try: lockrun -u redis://127.0.0.1:${sentinels%% *} --sentinel locks order:42 echo locked"
