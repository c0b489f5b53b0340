#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts the servers that the tests want besides the installed one into target/servers/, each as
# tests/kit/src/server/list.rs has it.
#
# Nothing is installed and root is not needed: the packages are downloaded from wherever this machine gets its
# own, by an apt with a state of its own, and unpacked together with the libraries that they need.
#
# A server that cannot be had is skipped with a loud word. With REQUIRE_ALL_SERVERS=1 that is a failure, unless the list has
# it as optional.

set -eu
cd "$(dirname -- "$0")/.."
servers=$PWD/target/servers
required_skipped=0

# Of each line of the list: program, package, whether it is required.
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

# The archives that this machine's own packages come from: Debian's, or all of them if apt does not know which
# those are, as before its first update.
sources() {
    debian=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|//p')
    if [ -n "$debian" ]; then
        echo "$debian"
    else
        apt-get update --print-uris | sed -n "s|^'\(.*\)/dists/.*|\1|p"
    fi | sort -u
}

# An apt that knows nothing of what is installed here, and so finds all libraries wanting, libc included.
prepare_apt() {
    mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial"
    : >"$tmp/status"
    arch=$(dpkg --print-architecture)
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] && signed_by="signed-by=$keyring" || signed_by=
    # A source that does not have the release costs a "not found" and no more.
    sources | while read -r uri; do
        list | sed -n 's|^[^ ]* [^ ]*/\([^ ]*\) .*|\1|p' | sort -u | while read -r release; do
            echo "deb [target=Packages $signed_by] $uri $release main"
        done
    done >"$tmp/sources.list"
    # Everything else, such as a proxy, stays as this machine has it; but its hooks and pins are not for us.
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
    # root may read these folders, apt's own user possibly not.
    [ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >>"$tmp/apt.conf"
    apt-get -c "$tmp/apt.conf" update >"$tmp/update.log" 2>&1 || true
}

# Unpacks a package and all that it depends on into a folder.
unpack() {
    package=$1
    root=$2
    rm -f "$tmp"/cache/archives/*.deb
    apt-get -c "$tmp/apt.conf" install --download-only --yes "$package" >"$tmp/download.log" 2>&1 || return 1
    for deb in "$tmp"/cache/archives/*.deb; do
        dpkg -x "$deb" "$root" || return 1
    done
}

# Starts the program under the loader and the libraries that came with it. They are looked for beside the
# wrapper, so that the repository may be anywhere and be moved. It ends in exec: its pid is the server's.
write_wrapper() {
    cat <<END
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")")
exec "\$here/root/$loader" --argv0 "\$here/$program" \\
    --library-path "\$here/root/$(dirname "$loader")" "\$here/root/$binary" "\$@"
END
}

# The libc is the newest that Debian has in every case: an older one could not load the module.
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
    # In Debian a server and its check-rdb are one program in the package of the tools; what it is called as
    # decides which it is.
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
# Two that run at once must not do the same work in the same place.
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
