#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the release packages in target/dist: dist.sh [TARGET...]
#
# * redis-lock-<version>-<system>.tar.gz has the module, the tools and the documentation.
# * redis-lock_<version>_<arch>.deb has the module, in the folder of Debian's redis-server and valkey-server.
# * redis-lock-tools_<version>_<arch>.deb has lockrun and locktop.
# * redis-lock-<version>.cdx.json lists the crates in the module and in the tools (CycloneDX).
# * SHA256SUMS has the checksums.
#
# A TARGET is a target of Rust that build.sh knows. For each, the script also builds an archive without the tools. It builds a
# package of the module for arm64.
#
# `make dist-server` calls it. MAINTAINER="name <address>" in the environment is the contact in the packages. Times,
# owners and order follow from the commit alone, and paths of this machine are replaced. `make test-targets` compares two builds.

set -eu
cd "$(dirname -- "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
maintainer=${MAINTAINER:-the makers of redis-lock <redis-lock@localhost>}
host=$(rustc -vV | sed -n 's/^host: //p')
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
    readelf --version-info "$@" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1
}

# Builds a Debian package of a folder. Arguments: name, architecture, additional control fields. Standard input: the description.
package() {
    root=$tmp/$1
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
    cp LICENSE "$root/usr/share/doc/$1/copyright"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/$1/CHANGELOG.md.gz"
    printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' "$1" "$version" "$maintainer" \
        "$(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$root/usr/share/doc/$1/changelog.gz"
    [ ! -d "$root/usr/share/man" ] || find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
    [ "$1" != redis-lock ] || install -m 755 tools/packaging/prerm "$root/DEBIAN/prerm"
    # shellcheck disable=SC2046
    needed=$(libc $(find "$root/usr" -type f \( -name '*.so' -o -path '*/bin/*' \)))
    {
        echo "Package: $1"
        echo "Version: $version"
        echo "Architecture: $2"
        echo "Maintainer: $maintainer"
        echo "Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f 1)"
        echo "Depends: libc6 (>= $needed), libgcc-s1"
        echo "$3"
        echo "Section: database"
        echo "Priority: optional"
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/${1}_${version}_$2.deb" >/dev/null
    rm -rf "$root"
}

# Builds the package of a module for an architecture.
package_of_module() {
    make install-module MODULE="$1" DESTDIR="$tmp/redis-lock" PREFIX=/usr >/dev/null
    package redis-lock "$2" "Enhances: redis-server, valkey-server
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
}

# Builds an archive from the files in $tmp/install/usr.
archive() {
    folder=$tmp/redis-lock-$version-$1
    mv "$tmp/install/usr" "$folder"
    python3 tools/packaging/pages.py "$folder"
    find "$folder" -exec chmod u+w,go+r {} +
    tar --create --directory "$tmp" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        "${folder##*/}" | gzip -9n >"$dist/${folder##*/}.tar.gz"
    rm -rf "$folder"
}

module=${MODULE:-$(sh tools/packaging/build.sh "$host")/libredis_lock.so}
tools=${TOOLS:-$(sh tools/packaging/build.sh "$host" tools)}
# Builds of the tests have debug information.
mkdir "$tmp/tools"
strip --strip-unneeded -o "$tmp/libredis_lock.so" "$module"
for tool in lockrun locktop; do
    strip --strip-unneeded -o "$tmp/tools/$tool" "$tools/$tool"
done
module=$tmp/libredis_lock.so tools=$tmp/tools

make install MODULE="$module" TOOLS="$tools" DESTDIR="$tmp/install" PREFIX=/usr >/dev/null
archive "linux-$(uname -m)"
package_of_module "$module" "$(dpkg --print-architecture)"
make install-tools TOOLS="$tools" DESTDIR="$tmp/redis-lock-tools" PREFIX=/usr >/dev/null
package redis-lock-tools "$(dpkg --print-architecture)" "Recommends: ca-certificates" <<'END'
Description: run commands under a lock in Redis or Valkey, and watch the locks
 lockrun runs a command while it holds a lock of the redis-lock module, as
 flock(1) does with a file, but for many machines. locktop shows locks, their
 waiters and their blockers.
END

for target; do
    module=$(sh tools/packaging/build.sh "$target")/libredis_lock.so
    make install-module MODULE="$module" DESTDIR="$tmp/install" PREFIX=/usr >/dev/null
    case $target in
    x86_64-unknown-linux-musl) archive linux-x86_64-musl ;;
    aarch64-unknown-linux-gnu)
        archive linux-aarch64
        package_of_module "$module" arm64
        ;;
    esac
done

python3 tools/packaging/sbom.py >"$dist/redis-lock-$version.cdx.json"
(cd "$dist" && sha256sum -- *.tar.gz *.deb *.cdx.json >SHA256SUMS)
ls -l "$dist"
