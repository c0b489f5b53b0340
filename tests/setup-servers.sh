#!/bin/sh
# SPDX-License-Identifier: MIT
# Unpacks the servers of the tests into target/servers/, except the installed one. The list is tests/kit/src/server/list.rs.
#
# Installs nothing, and does not need root. An apt with a state of its own downloads the packages and their libraries, from the
# archives of this machine.
#
# If a server is not available, prints a line and skips the server. With REQUIRE_ALL_SERVERS=1, fails instead, unless the server
# is optional in the list.

set -eu
cd "$(dirname -- "$0")/.."
servers=$PWD/target/servers
required_skipped=0

# Prints three words for each line of the list: program, package, and required or optional.
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

# Prints the archives of this machine's packages: those of Debian, or all archives if apt does not know their origin, as before
# its first update.
sources() {
    debian=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|//p')
    if [ -n "$debian" ]; then
        echo "$debian"
    else
        apt-get update --print-uris | sed -n "s|^'\(.*\)/dists/.*|\1|p"
    fi | sort -u
}

# Runs an apt that ignores the installed packages, and so downloads all libraries, libc included.
prepare_apt() {
    mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial"
    : >"$tmp/status"
    arch=$(dpkg --print-architecture)
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] && signed_by="signed-by=$keyring" || signed_by=
    # A source without the release costs one "not found".
    sources | while read -r uri; do
        list | sed -n 's|^[^ ]* [^ ]*/\([^ ]*\) .*|\1|p' | sort -u | while read -r release; do
            echo "deb [target=Packages $signed_by] $uri $release main"
        done
    done >"$tmp/sources.list"
    # Keeps the configuration of this machine, such as a proxy, but neither hooks nor pins.
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
    # The user of apt may not be allowed to read these folders, so root reads them.
    [ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >>"$tmp/apt.conf"
    apt-get -c "$tmp/apt.conf" update >"$tmp/update.log" 2>&1 || true
}

# Unpacks a package and its dependencies into a folder.
unpack() {
    package=$1
    root=$2
    rm -f "$tmp"/cache/archives/*.deb
    apt-get -c "$tmp/apt.conf" install --download-only --yes "$package" >"$tmp/download.log" 2>&1 || return 1
    for deb in "$tmp"/cache/archives/*.deb; do
        dpkg -x "$deb" "$root" || return 1
    done
}

# Writes a wrapper that starts the program with the loader and the libraries of its package. Their paths are relative to the
# wrapper, so the repository can be moved. The wrapper ends in exec, so its process id is that of the server.
write_wrapper() {
    cat <<END
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")")
exec "\$here/root/$loader" --argv0 "\$here/$program" \\
    --library-path "\$here/root/$(dirname "$loader")" "\$here/root/$binary" "\$@"
END
}

# Always takes the newest libc of Debian, as an older one could not load the module.
get() {
    name=$1
    program=$2
    package=$3
    works "$name/$program" && return
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        skip "$name" "this is no Debian"
        return
    fi
    [ -e "$tmp/apt.conf" ] || prepare_apt
    rm -rf "$tmp/new"
    mkdir -p "$tmp/new/root"
    if ! unpack "$package" "$tmp/new/root"; then
        grep -h '^[EW]:' "$tmp/update.log" "$tmp/download.log" >&2 || true
        skip "$name" "no package $package"
        return
    fi
    # In Debian, a server and its check-rdb are one program in the package of the tools. The name of the call selects one of them.
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
# Two runs at the same time must not work in the same folder.
exec 9>"$servers/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$servers/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

list >"$tmp/list"
[ -s "$tmp/list" ] || { echo "FAILED: no servers in the list" >&2; exit 1; }
while read -r program package needed <&3; do
    [ "$package" = installed ] || get "${program%/*}" "${program##*/}" "$package"
done 3<"$tmp/list"

if [ "$required_skipped" = 1 ] && [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
    echo "FAILED: REQUIRE_ALL_SERVERS is set, and not all servers are there" >&2
    exit 1
fi
