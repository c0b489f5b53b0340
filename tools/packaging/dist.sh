#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the release packages in target/dist:
#
# * redis-lock-<version>-<system>.tar.gz has the module, the tools and the documentation.
# * redis-lock_<version>_<arch>.deb has the module, in the folder of Debian's redis-server and valkey-server.
# * redis-lock-tools_<version>_<arch>.deb has lockrun and locktop.
# * SHA256SUMS has the checksums.
#
# `make dist` calls it. The builds are reproducible: times, owners and order in the packages follow from the commit alone.

set -eu
cd "$(dirname -- "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
system=$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
dist=$PWD/target/dist
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
umask 022
find "$dist" -maxdepth 1 -type f -delete 2>/dev/null || true
mkdir -p "$dist"

# The newest version of the C library that these files need.
libc() {
    objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1
}

# Builds a Debian package of a folder. Arguments: name, additional control fields. Standard input: the description.
package() {
    root=$tmp/$1
    find "$root" -type f -executable -o -name '*.so' -type f | xargs -r strip --strip-unneeded
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
    cp LICENSE "$root/usr/share/doc/$1/copyright"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/$1/changelog.gz"
    find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} + 2>/dev/null || true
    needed=$(libc $(find "$root" -type f \( -name '*.so' -o -path '*/bin/*' \)))
    {
        echo "Package: $1"
        echo "Version: $version"
        echo "Architecture: $arch"
        echo "Maintainer: the makers of redis-lock"
        echo "Installed-Size: $(du -sk --exclude DEBIAN "$root" | cut -f 1)"
        echo "Depends: libc6 (>= $needed), libgcc-s1"
        [ -z "$2" ] || echo "$2"
        echo "Section: database"
        echo "Priority: optional"
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/${1}_${version}_$arch.deb" >/dev/null
}

everything=$tmp/redis-lock-$version-$system
make install DESTDIR="$everything" PREFIX=/ >/dev/null
find "$everything/bin" "$everything/lib" -type f -exec strip --strip-unneeded {} +
cp -R README.md CHANGELOG.md LICENSE docs "$everything"
tar --create --directory "$tmp" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    "$(basename "$everything")" | gzip -9n >"$dist/$(basename "$everything").tar.gz"

make install-module DESTDIR="$tmp/redis-lock" PREFIX=/usr >/dev/null
package redis-lock "Enhances: redis-server, valkey-server
Suggests: redis-lock-tools" <<'END'
Description: distributed locks as native commands of Redis and Valkey
 A server module. It gives Redis and Valkey the commands LOCK.ACQUIRE,
 LOCK.RELEASE, LOCK.RENEW and more: waiters queue in the server, a release hands
 the lock to exactly one of them, and it works on the same data as Redisson's
 RLock.
 .
 To load it, add the line in /usr/share/redis-lock/redis-lock.conf to the
 configuration of the server.
END
make install-tools DESTDIR="$tmp/redis-lock-tools" PREFIX=/usr >/dev/null
package redis-lock-tools "Recommends: ca-certificates" <<'END'
Description: run commands under a lock in Redis or Valkey, and watch the locks
 lockrun runs a command while it holds a lock of the redis-lock module, as
 flock(1) does with a file, but for many machines. locktop shows locks, their
 waiters and their blockers.
END

(cd "$dist" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
ls -l "$dist"
