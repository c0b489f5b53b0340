#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a cluster for locks on one machine: three primaries with a replica each.
#
#   sh docs/setups/cluster.sh start | status | stop | clean
#
# See common.sh for the options.

PORT=${PORT:-7200}
ports="$PORT $((PORT + 1)) $((PORT + 2)) $((PORT + 3)) $((PORT + 4)) $((PORT + 5))"
# Each node listens for clients on its port, and for the other nodes on its port plus 10000.
offsets="0 10000"
. "$(dirname -- "$0")/common.sh"

if [ "$1" = status ]; then
    "$CLI" -p "$PORT" CLUSTER NODES | grep master
    exit
fi
for port in $ports; do
    {
        server_config "$port"
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
    wait_for_reply cluster_state:ok "$port" CLUSTER INFO
done
# shellcheck disable=SC2086
wait_for_replicas 1 $ports
echo "a cluster on $ports"
echo "try: lockrun -u redis://127.0.0.1:$PORT --cluster order:42 echo locked"
