# SPDX-License-Identifier: MIT
# What the set-ups share. It is read by them, and not run.
#
#   SERVER=redis-server       the program: valkey-server is one, too
#   CLI=redis-cli
#   MODULE=…/redis-lock.so    the module; installed or built here, unless given
#   DIR=data/<name>           where the files are
#   PORT=…                    the first port

set -eu
root=$(cd "$(dirname -- "$0")/../.." && pwd)
SERVER=${SERVER:-redis-server}
CLI=${CLI:-redis-cli}
DIR=${DIR:-$root/data/$(basename "$0" .sh)}
if [ -z "${MODULE:-}" ]; then
    MODULE=/usr/lib/redis/modules/redis-lock.so
    [ -e "$MODULE" ] || MODULE=$root/target/release/libredis_lock.so
fi
# Servers report the path of their configuration as they were given it.
case $DIR in /*) ;; *) DIR=$PWD/$DIR ;; esac

# The settings of every server that keeps locks. What is not said here is as the server has it.
lock_server() {
    cat <<END
port $1
dir $DIR/$1
pidfile $DIR/$1/pid
logfile $DIR/$1/log
daemonize yes
bind 127.0.0.1
# A lock that is evicted is a lock that two have.
maxmemory-policy noeviction
# A server that starts again knows its locks.
appendonly yes
# A primary that is cut off from its replicas stops granting.
min-replicas-to-write 1
min-replicas-max-lag 5
# A client whose machine is gone is noticed within two minutes.
tcp-keepalive 60
# In this file itself, as CONFIG REWRITE writes it here.
loadmodule $MODULE
END
}

# True if the server on this port is one that this script has started: its process is that of the pid file, and its
# configuration the one below $DIR.
is_ours() {
    pid=$(cat "$DIR/$1/pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || return 1
    info=$("$CLI" -p "$1" INFO server 2>/dev/null | tr -d '\r')
    echo "$info" | grep -Fqx "process_id:$pid" && echo "$info" | grep -Fqx "config_file:$DIR/$1/server.conf"
}

# Starts a server with the configuration on the standard input, or with the one that it has from an earlier start.
launch() {
    if is_ours "$1"; then
        return
    fi
    mkdir -p "$DIR/$1"
    [ -e "$DIR/$1/server.conf" ] || cat >"$DIR/$1/server.conf"
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

# Ends the script if another program listens on a port that one of the servers needs.
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

# Waits until a server answers that, somewhere in its answer.
until_says() {
    wanted=$1
    at=$2
    shift 2
    for _ in $(seq 300); do
        case $("$CLI" -p "$at" "$@" 2>/dev/null) in *"$wanted"*) return 0 ;; esac
        sleep 0.1
    done
    echo "$at does not answer $wanted to $*; see $DIR/$at/log" >&2
    exit 1
}

# Waits until replication runs: a primary grants nothing before it has heard of so many replicas.
until_replicated() {
    replicas=$1
    shift
    for port; do
        case $("$CLI" -p "$port" ROLE) in
        master*) until_says "min_slaves_good_slaves:$replicas" "$port" INFO replication ;;
        *) until_says master_link_status:up "$port" INFO replication ;;
        esac
    done
}

# Ends the servers that were started here, and no other ones, whatever answers on their ports.
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
            echo "$DIR/$port is kept: the process in its pid file runs; end it, or remove that file" >&2
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
