#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the packages of `make dist-server` in a copy of this system, and starts Debian's redis-server there with the module.
# With PREBUILT=1 the packages in target/dist are not built again.
# The restrictions of its systemd unit apply as far as possible without systemd. The server has the unit's user, no privileges and
# a read-only system. It executes programs only in the folders that the unit allows.
#
# Needs root and mount namespaces. Without them it prints SKIPPED; with REQUIRE_ALL_SERVERS=1 it fails.

set -eu
cd "$(dirname -- "$0")/../.."

skip() {
    echo "SKIPPED: the packages are not tested: $1" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || skip "the test needs root"
    unshare --mount true 2>/dev/null || skip "mount namespaces are unavailable"
    [ -e /lib/systemd/system/redis-server.service ] || skip "Debian's redis-server is missing"
    [ "${PREBUILT:-}" = 1 ] || make dist-server TOOLS="${REDIS_LOCK_TOOLS:-}" MODULE="${REDIS_LOCK_MODULE:-}"
    (cd target/dist && sha256sum --check --quiet SHA256SUMS)
    # The module needs no newer C library than the documentation says.
    needed=$(dpkg-deb --field target/dist/redis-lock_*_"$(dpkg --print-architecture)".deb Depends)
    [ "$needed" = "libc6 (>= 2.34), libgcc-s1" ] || { echo "the module needs $needed" >&2; exit 1; }
    if command -v lintian >/dev/null; then
        lintian --allow-root --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog \
            target/dist/*.deb
    elif [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
        echo "lintian is missing" >&2
        exit 1
    fi
    python3 - target/dist/*.cdx.json <<'END'
import json, sys
document = json.load(open(sys.argv[1]))
names = {component["name"] for component in document["components"]}
assert {"redis-module", "rustls", "redis-lock-tools"} <= names and "proptest" not in names, names
assert {entry["ref"] for entry in document["dependencies"]} > {entry["bom-ref"] for entry in document["components"]}
END
    exec unshare --mount --propagation private sh "$0" inside
fi

# The copy of the system. Its changed files are in memory, and disappear with this namespace.
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait; umount -R "$work" 2>/dev/null; rmdir "$work"' EXIT
trap 'exit 1' HUP INT TERM
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" ||
    skip "overlay file systems are unavailable"
root=$work/root
for what in dev proc sys; do
    mount --rbind "/$what" "$root/$what"
done
mount -t tmpfs -o noexec tmpfs "$root/tmp"
mount -t tmpfs -o noexec tmpfs "$root/run"
cp target/dist/*_"$(dpkg --print-architecture)".deb "$root/tmp"
mkdir "$root/tmp/archive"
tar --extract --gzip --strip-components 1 --directory "$root/tmp/archive" --file "$(ls target/dist/*-linux-"$(uname -m)".tar.gz)"
in_copy() {
    chroot "$root" "$@"
}
python3 - "$root/tmp/archive" <<'END'
import re, sys
from pathlib import Path
for page in Path(sys.argv[1]).rglob("*.md"):
    for target in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page} links to {target}, which the archive does not have"
END

# The steps in the archive, without those for systemd, end in a system whose server can load the module.
in_copy sh -euc 'cp /etc/redis/redis.conf /etc/redis/before
    cd /tmp/archive
    sed -n "/^\`\`\`sh$/,/^\`\`\`$/p" INSTALL.md | sed "/^\`/d; /systemctl/d; s/sudo //" >steps
    sh -eux steps
    grep -q "^loadmodule /usr/lib/redis/modules/redis-lock.so" /etc/redis/redis.conf
    cmp lib/redis/modules/redis-lock.so /usr/lib/redis/modules/redis-lock.so
    lockrun --version
    mv /etc/redis/before /etc/redis/redis.conf
    find bin lib share -type f | sed "s|^|/usr/|" | xargs rm'
in_copy sh -c 'DEBIAN_FRONTEND=noninteractive dpkg --install /tmp/*.deb'

# The line that an operator adds to the configuration.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
in_copy sh -euc "cat /usr/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf
    sed -i 's/^port .*/port $port/; s/^daemonize .*/daemonize no/; s/^bind .*/bind 127.0.0.1/' /etc/redis/redis.conf
    install -d -o redis -g redis /run/redis /var/lib/redis /var/log/redis
    chown -R redis:redis /etc/redis"

unit() {
    sed -n "s/^$1=//p" "$root/lib/systemd/system/redis-server.service"
}

# Starts the server in its own namespace, as systemd does. The rest of this script may execute other programs.
start() {
    unshare --mount --propagation private sh -euc '
        root=$1
        shift
        mount --rbind "$root" "$root"
        mount -o remount,bind,ro,noexec,nosuid,nodev "$root"
        for path in $exec; do
            mount --bind "$root$path" "$root$path"
            mount -o remount,bind,ro,exec,nosuid,nodev "$root$path"
        done
        for path in $write; do
            path=$root$path
            mount --bind "$path" "$path"
            mount -o remount,bind,rw,noexec,nosuid,nodev "$path"
        done
        exec python3 -c "
import ctypes, os, pwd, sys
user = pwd.getpwnam(\"redis\")
os.chroot(sys.argv[1])
os.chdir(\"/\")
os.setgroups([])
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # NoNewPrivileges
libc.prctl(65, 1, 0, 0, 0)  # MemoryDenyWriteExecute, where the kernel knows it
os.umask(0o007)
os.execv(\"/usr/bin/redis-server\", [\"redis-server\", \"/etc/redis/redis.conf\"])
" "$root"' sh "$root" &
    server=$!
    for _ in $(seq 100); do
        [ "$(in_copy redis-cli -p "$port" PING 2>/dev/null)" != PONG ] || return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$root"/var/log/redis/*.log >&2
    return 1
}

expect() {
    wanted=$1
    shift
    found=$("$@")
    [ "$found" = "$wanted" ] || { echo "$*: '$found', not '$wanted'" >&2; exit 1; }
}

stop() {
    in_copy redis-cli -p "$port" SHUTDOWN NOSAVE >/dev/null 2>&1 || true
    wait $server || true
}

exec=$(unit ExecPaths)
# Links are resolved, because they would lead out of the copy.
write="$(unit 'ReadWrite[A-Za-z]*' | sed 's/^-//' | in_copy xargs readlink -m | tr '\n' ' ') /tmp"
export exec write
start
expect 1 in_copy redis-cli -p "$port" LOCK.ACQUIRE order alice
expect "inside order:2" in_copy lockrun -u "redis://127.0.0.1:$port" -c 'echo inside $LOCK_KEY' order:2
in_copy locktop -u "redis://127.0.0.1:$port" --batch | grep -q 'No lock has waiters' ||
    { echo "the output of locktop is wrong" >&2; exit 1; }
# The server starts again after CONFIG REWRITE, which would drop the line if it were in an included file.
expect OK in_copy redis-cli -p "$port" CONFIG REWRITE
stop
expect 1 in_copy grep -c ^loadmodule /etc/redis/redis.conf
start
expect 1 in_copy redis-cli -p "$port" LOCK.ACQUIRE order alice
stop
# The module is refused in another folder, so the restrictions of the unit apply.
in_copy sh -c 'cp /usr/lib/redis/modules/redis-lock.so /var/lib/redis/ && chmod 755 /var/lib/redis/redis-lock.so'
in_copy sed -i 's|^loadmodule .*|loadmodule /var/lib/redis/redis-lock.so|' /etc/redis/redis.conf
if start 2>/dev/null; then
    echo "the server loaded a module from a folder that the unit does not allow" >&2
    exit 1
fi
in_copy bash -c 'for tool in lockrun locktop; do source /usr/share/bash-completion/completions/$tool && complete -p $tool; done' |
    grep -q locktop || { echo "bash completion is missing" >&2; exit 1; }
for tool in lockrun locktop; do
    gzip -dc "$root/usr/share/man/man1/$tool.1.gz" | grep -q '^\.SH' ||
        { echo "the manual page of $tool is missing" >&2; exit 1; }
done
in_copy dpkg --purge redis-lock redis-lock-tools 2>"$work/warnings"
grep -q 'warning: /etc/redis/redis.conf has loadmodule' "$work/warnings" ||
    { echo "the removal does not warn of the configuration" >&2; cat "$work/warnings" >&2; exit 1; }
for left in /usr/lib/redis/modules/redis-lock.so /usr/share/redis-lock /usr/bin/lockrun /usr/share/man/man1/lockrun.1.gz; do
    [ ! -e "$root$left" ] || { echo "purging the packages left $left" >&2; exit 1; }
done
# The documented removal: without the lines of the module, the server starts. A setting that is left ends its start.
in_copy sed -i '/^loadmodule .*redis-lock/d' /etc/redis/redis.conf
in_copy sh -c 'echo "lock.max-lease 0" >>/etc/redis/redis.conf'
if start 2>/dev/null; then
    echo "the server started with a setting of the missing module" >&2
    exit 1
fi
in_copy sed -i '/^lock\./d' /etc/redis/redis.conf
start
expect PONG in_copy redis-cli -p "$port" PING
stop
echo "the packages were installed, and the server ran with them"
