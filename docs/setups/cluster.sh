#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a cluster for locks on one machine: three primaries with two replicas each. It grants locks while any one node is down.
#
#   sh docs/setups/cluster.sh start | status | stop | clean
#
# See common.sh for the options.

PORT=${PORT:-7200}
ports="$PORT $((PORT + 1)) $((PORT + 2)) $((PORT + 3)) $((PORT + 4)) $((PORT + 5)) $((PORT + 6)) $((PORT + 7)) $((PORT + 8))"
# Each node listens for clients on its port, and for the other nodes on its port plus 10000.
offsets="0 10000"
. "$(dirname -- "$0")/common.sh"

if [ "$1" = status ]; then
    for port in $ports; do
        if nodes=$("$CLI" -p "$port" CLUSTER NODES 2>/dev/null); then
            echo "$nodes" | grep master
            exit
        fi
    done
    echo "no node is running" >&2
    exit 1
fi
for port in $ports; do
    {
        server_config "$port"
        echo "cluster-enabled yes"
        echo "cluster-node-timeout 3000"
    } | launch "$port" ""
done
# An interrupted start may have left a part of a cluster. It has no keys yet.
if [ ! -e "$DIR/$PORT/created" ]; then
    for port in $ports; do
        [ "$("$CLI" -p "$port" DBSIZE)" = 0 ] || {
            echo "the server on port $port has keys; use clean to delete them" >&2
            exit 1
        }
    done
    for port in $ports; do
        "$CLI" -p "$port" CLUSTER RESET HARD >/dev/null
    done
    nodes=$(for port in $ports; do printf '127.0.0.1:%s ' "$port"; done)
    # shellcheck disable=SC2086
    "$CLI" --cluster create $nodes --cluster-replicas 2 --cluster-yes >/dev/null
    : >"$DIR/$PORT/created"
fi
for port in $ports; do
    wait_for_reply cluster_state:ok "$port" CLUSTER INFO
done
# shellcheck disable=SC2086
wait_for_replicas 2 $ports
echo "a cluster on $ports"
echo "try: lockrun -u redis://127.0.0.1:$PORT --cluster order:42 echo locked"
