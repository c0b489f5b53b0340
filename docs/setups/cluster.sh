#!/bin/sh
# SPDX-License-Identifier: MIT
# A cluster with locks: three primaries with a replica each, on one machine.
# sh docs/setups/cluster.sh start | status | stop | clean; what can be chosen is in common.sh.

PORT=${PORT:-7200}
ports="$PORT $((PORT + 1)) $((PORT + 2)) $((PORT + 3)) $((PORT + 4)) $((PORT + 5))"
# Each node listens for clients on its port, and for the other nodes 10000 above it.
offsets="0 10000"
. "$(dirname -- "$0")/common.sh"

if [ "$1" = status ]; then
    "$CLI" -p "$PORT" CLUSTER NODES | grep master
    exit
fi
for port in $ports; do
    {
        lock_server "$port"
        echo "cluster-enabled yes"
        echo "cluster-node-timeout 3000"
    } | launch "$port" ""
done
if [ "$("$CLI" -p "$PORT" CLUSTER INFO | tr -d '\r' | sed -n 's/^cluster_known_nodes://p')" = 1 ]; then
    nodes=$(for port in $ports; do printf '127.0.0.1:%s ' "$port"; done)
    # shellcheck disable=SC2086
    "$CLI" --cluster create $nodes --cluster-replicas 1 --cluster-yes >/dev/null
fi
for port in $ports; do
    until_says cluster_state:ok "$port" CLUSTER INFO
done
# shellcheck disable=SC2086
until_replicated 1 $ports
echo "a cluster on $ports"
echo "try: lockrun -u redis://127.0.0.1:$PORT --cluster order:42 echo locked"
