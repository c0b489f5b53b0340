#!/bin/sh
# SPDX-License-Identifier: MIT
# Extracts the servers of tests/kit/src/server/list.rs into target/servers, except for the installed one.
#
# Installs nothing, and needs no root. An apt with its own state downloads the packages and their libraries from this machine's
# archives.
#
# Prints SKIPPED for a server that cannot be downloaded. With REQUIRE_ALL_SERVERS=1 it then fails, unless the list marks the
# server as optional.

set -eu
cd "$(dirname -- "$0")/../.."
servers=$PWD/target/servers
required_skipped=0

# The program, package and necessity of each server in the list.
list() {
    sed -n 's/^ *{ [a-z0-9_]* .* "\([^"]*\)"  *"\([^"]*\)"  *\([a-z]*\)  *[a-z_]* *}$/\1 \2 \3/p' \
        tests/kit/src/server/list.rs
}

skip() {
    echo "SKIPPED: $1: $2; tests on it will not run" >&2
    [ "$needed" != required ] || required_skipped=1
}

works() {
    "$servers/$1" --version >/dev/null 2>&1
}

# The Debian archives of this machine, or all its archives if apt does not know their origin, as before its first update.
sources() {
    debian=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|//p')
    if [ -n "$debian" ]; then
        echo "$debian"
    else
        apt-get update --print-uris | sed -n "s|^'\(.*\)/dists/.*|\1|p"
    fi | sort -u
}

# Configures an apt that knows of no installed package, so it downloads every library, including libc.
prepare_apt() {
    mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial"
    : >"$tmp/status"
    arch=$(dpkg --print-architecture)
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] && signed_by="signed-by=$keyring" || signed_by=
    # A source without the release only causes a "not found".
    sources | while read -r uri; do
        list | sed -n 's|^[^ ]* [^ ]*/\([^ ]*\) .*|\1|p' | sort -u | while read -r release; do
            echo "deb [target=Packages $signed_by] $uri $release main"
        done
    done >"$tmp/sources.list"
    # Other settings of this machine apply, such as a proxy, but its hooks and pins do not.
    cat >"$tmp/apt.conf" <<END
#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
APT::Architectures { "$arch"; };
APT::Install-Recommends "false";
Acquire::Retries "3";
Acquire::Languages "none";
Dir::State "$tmp/state";
Dir::State::status "$tmp/status";
Dir::Cache "$tmp/cache";
Dir::Etc::sourcelist "$tmp/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
END
    # apt's own user may have no permission to read these folders; root has.
    [ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >>"$tmp/apt.conf"
    apt-get -c "$tmp/apt.conf" update >"$tmp/update.log" 2>&1 || true
}

# Extracts a package and its dependencies into a folder.
unpack() {
    package=$1
    root=$2
    rm -f "$tmp"/cache/archives/*.deb
    apt-get -c "$tmp/apt.conf" install --download-only --yes "$package" >"$tmp/download.log" 2>&1 || return 1
    for deb in "$tmp"/cache/archives/*.deb; do
        dpkg -x "$deb" "$root" || return 1
    done
}

# Writes a script that starts the program with its own loader and libraries. They are found relative to the script, so the
# repository can be moved. The script uses exec, so the server has its process ID.
write_wrapper() {
    cat <<END
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")")
exec "\$here/root/$loader" --argv0 "\$here/$program" \\
    --library-path "\$here/root/$(dirname "$loader")" "\$here/root/$binary" "\$@"
END
}

# Every server gets Debian's newest libc, because the module does not load with an older one.
get() {
    name=$1
    program=$2
    package=$3
    works "$name/$program" && return
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        skip "$name" "this system is not Debian"
        return
    fi
    [ -e "$tmp/apt.conf" ] || prepare_apt
    rm -rf "$tmp/new"
    mkdir -p "$tmp/new/root"
    if ! unpack "$package" "$tmp/new/root"; then
        grep -h '^[EW]:' "$tmp/update.log" "$tmp/download.log" >&2 || true
        skip "$name" "package $package cannot be downloaded"
        return
    fi
    # In Debian's package of the tools, a server and its check-rdb are one program. Its name at the start selects its role.
    binary=usr/bin/${program%-server}-check-rdb
    loader=$(cd "$tmp/new/root" && find usr/lib -name 'ld-linux*.so.*' -type f)
    write_wrapper >"$tmp/new/$program"
    chmod +x "$tmp/new/$program"
    if ! version=$("$tmp/new/$program" --version); then
        skip "$name" "the server of $package does not run here"
        return
    fi
    mkdir -p "$servers/$name"
    rm -rf "$servers/$name/root"
    mv "$tmp/new/root" "$servers/$name/root"
    mv "$tmp/new/$program" "$servers/$name/$program"
    echo "$name: $version"
}

mkdir -p "$servers"
# Two runs at the same time must not build in the same place.
exec 9>"$servers/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$servers/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

list >"$tmp/list"
[ -s "$tmp/list" ] || { echo "FAILED: the list has no servers" >&2; exit 1; }
while read -r program package needed <&3; do
    [ "$package" = installed ] || get "${program%/*}" "${program##*/}" "$package"
done 3<"$tmp/list"

if [ "$required_skipped" = 1 ] && [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
    echo "FAILED: REQUIRE_ALL_SERVERS is set, and a server is missing" >&2
    exit 1
fi
