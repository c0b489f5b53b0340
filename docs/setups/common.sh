# SPDX-License-Identifier: MIT
# Common part of the set-ups, which source this file. These variables are options:
#
# - SERVER=redis-server: the server program, for example valkey-server
# - CLI=redis-cli: the client program
# - MODULE=…/redis-lock.so: the module; by default the installed one, otherwise the one built here
# - DIR=data/<name>: the folder of all files
# - PORT=…: the first port

set -eu
root=$(cd "$(dirname -- "$0")/../.." && pwd)
SERVER=${SERVER:-redis-server}
CLI=${CLI:-redis-cli}
DIR=${DIR:-$root/data/$(basename "$0" .sh)}
if [ -z "${MODULE:-}" ]; then
    MODULE=/usr/lib/redis/modules/redis-lock.so
    [ -e "$MODULE" ] || MODULE=$root/target/release/libredis_lock.so
fi
# Servers report the path of their configuration as it was passed to them, so is_ours needs an absolute path.
case $DIR in /*) ;; *) DIR=$PWD/$DIR ;; esac

# Prints the configuration of a server for locks. All other settings keep the server's defaults.
server_config() {
    cat <<END
port $1
dir $DIR/$1
pidfile $DIR/$1/pid
logfile $DIR/$1/log
daemonize yes
bind 127.0.0.1
# Two owners could hold an evicted lock.
maxmemory-policy noeviction
# A restarted server still knows its locks.
appendonly yes
# A primary that is cut off from its replicas stops granting.
min-replicas-to-write 1
min-replicas-max-lag 5
# The server detects a client whose machine is gone within two minutes.
tcp-keepalive 60
# Not in an included file: CONFIG REWRITE writes this line into the main file, and a second load would fail.
loadmodule $MODULE
END
}

# Succeeds if this script has started the server on the given port. Then its process id is that of the pid file, and its
# configuration file is below $DIR.
is_ours() {
    pid=$(cat "$DIR/$1/pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || return 1
    info=$("$CLI" -p "$1" INFO server 2>/dev/null | tr -d '\r')
    echo "$info" | grep -Fqx "process_id:$pid" && echo "$info" | grep -Fqx "config_file:$DIR/$1/server.conf"
}

# Starts a server with the configuration of an earlier start, or otherwise with the one on standard input.
launch() {
    if is_ours "$1"; then
        return
    fi
    mkdir -p "$DIR/$1"
    # An interrupted start leaves no incomplete file.
    if [ ! -e "$DIR/$1/server.conf" ]; then
        cat >"$DIR/$1/new.conf"
        mv "$DIR/$1/new.conf" "$DIR/$1/server.conf"
    fi
    rm -f "$DIR/$1/pid"
    "$SERVER" "$DIR/$1/server.conf" $2
    for _ in $(seq 300); do
        if is_ours "$1" && [ "$("$CLI" -p "$1" PING)" = PONG ]; then
            return
        fi
        sleep 0.1
    done
    echo "no server was started on port $1; see $DIR/$1/log" >&2
    exit 1
}

# Exits if another program listens on a port that a server needs.
refuse_used_ports() {
    for port in $ports; do
        ! is_ours "$port" || continue
        for offset in $offsets; do
            if bash -c ": </dev/tcp/127.0.0.1/$((port + offset))" 2>/dev/null; then
                echo "port $((port + offset)) is in use by another program; set PORT to use other ports" >&2
                exit 1
            fi
        done
    done
}

# Waits until the reply of the server on a port contains the given text.
wait_for_reply() {
    wanted=$1
    at=$2
    shift 2
    for _ in $(seq 300); do
        case $("$CLI" -p "$at" "$@" 2>/dev/null) in *"$wanted"*) return 0 ;; esac
        sleep 0.1
    done
    echo "port $at: no $wanted in the reply to $*; see $DIR/$at/log" >&2
    exit 1
}

# Waits until each primary has the given number of replicas in sync: before that it grants no locks. A server that returns after
# a failover is demoted meanwhile.
wait_for_replicas() {
    replicas=$1
    shift
    for port; do
        for _ in $(seq 300); do
            case $("$CLI" -p "$port" INFO replication 2>/dev/null | tr -d '\r' | tr '\n' ' ') in
            *role:master*"min_slaves_good_slaves:$replicas "* | *role:slave*master_link_status:up*) continue 2 ;;
            esac
            sleep 0.1
        done
        echo "port $port: replicas are not in sync; see $DIR/$port/log" >&2
        exit 1
    done
}

# Stops the servers that this script has started, and no other server on the same ports.
stop() {
    for port in $ports; do
        if is_ours "$port"; then
            "$CLI" -p "$port" SHUTDOWN NOSAVE >/dev/null 2>&1 || true
        fi
    done
}

case ${1:-} in
start)
    refuse_used_ports
    ;;
status) ;;
stop)
    stop
    exit
    ;;
clean)
    stop
    for port in $ports; do
        [ -e "$DIR/$port/server.conf" ] || continue
        if [ -e "$DIR/$port/pid" ] && kill -0 "$(cat "$DIR/$port/pid")" 2>/dev/null; then
            echo "$DIR/$port stays: the process in its pid file is running; end it, or remove that file" >&2
            exit 1
        fi
        rm -rf "${DIR:?}/$port"
    done
    rmdir "$DIR" 2>/dev/null || true
    exit
    ;;
*)
    echo "usage: $0 start | status | stop | clean" >&2
    exit 64
    ;;
esac
