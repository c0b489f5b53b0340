#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds what a package in clients/ publishes, in target/dist/clients: client.sh python|node|java|rust|go. Go's modules are
# published as tags of this repository. Their files here are those that a module proxy makes of these tags.
#
# `make package-python` and so on call it. It needs the build tools of the language, and its package registry.

set -eu
cd "$(dirname -- "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
language=$1
root=$PWD dist=$PWD/target/dist/clients tools=$PWD/target/packaging/$1
mkdir -p "$dist" "$tools"
# Two builds at the same time must not write in the same place.
exec 9>"$tools/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
umask 022

# The published files of a package are its own and the license.
copy() {
    cp LICENSE "$tmp"
    for file; do
        cp -R "clients/$language/$file" "$tmp"
    done
    find "$tmp" -name __pycache__ -o -name '*.egg-info' | xargs rm -rf
}

case $language in
python)
    [ -x "$tools/bin/twine" ] || {
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
    }
    copy pyproject.toml README.md src
    rm -f "$dist"/redis_lock_client-*
    "$tools/bin/python" -m build --outdir "$dist" "$tmp" >"$tools/log" 2>&1 || { cat "$tools/log" >&2; exit 1; }
    "$tools/bin/twine" check --strict "$dist"/redis_lock_client-*
    ls "$dist/redis_lock_client-$version-py3-none-any.whl" "$dist/redis_lock_client-$version.tar.gz"
    ;;
node)
    copy src README.md package.json package-lock.json tsconfig.json tsconfig.cjs.json
    cd "$tools"
    rm -rf src dist
    cp -R "$tmp/." .
    cmp -s package-lock.json .installed || npm ci --no-audit --no-fund --ignore-scripts --loglevel error
    cp package-lock.json .installed
    npm run --silent build
    rm -f "$dist"/redis-lock-client-*.tgz
    packed=$dist/$(npm pack --silent --pack-destination "$dist")
    npx --yes publint@0.3.25 run --strict "$packed"
    # An entry of ES modules only is not for CommonJS.
    npx --yes @arethetypeswrong/cli@0.18.5 "$packed" --profile node16 --ignore-rules cjs-resolves-to-esm \
        --format ascii >"$tools/log" || { cat "$tools/log" >&2; exit 1; }
    ls "$packed"
    ;;
rust)
    # A build of the packed crate follows when it is used.
    cargo package --quiet --package redis-lock-client --no-verify --allow-dirty --target-dir "$tools"
    rm -f "$dist"/redis-lock-client-*.crate
    cp "$tools/package/redis-lock-client-$version.crate" "$dist"
    ls "$dist/redis-lock-client-$version.crate"
    ;;
java)
    rm -rf "$dist/maven"
    (cd clients/java && mvn --batch-mode --quiet -Dout="$tools/out" -Ppublish -pl '!driver' \
        -DskipTests -Dmaven.install.skip deploy -DaltDeploymentRepository="local::file://$dist/maven")
    # Other modules of the build need this file, and users do not.
    find "$dist/maven" -name '*-tests.jar*' -delete
    find "$dist/maven" -name "*-$version.jar" | while read -r jar; do
        jar tf "$jar" | grep -qx META-INF/LICENSE || { echo "$jar has no license" >&2; exit 1; }
    done
    find "$dist/maven" -name '*.jar' -o -name '*.pom'
    ;;
go)
    rm -rf "$dist/go"
    for module in clients/go clients/go/gocron; do
        cd "$root/$module"
        go mod verify
        go mod tidy -diff
        name=$(go list -m)
        served=$dist/go/$name/@v files=$tmp/$name@v$version
        mkdir -p "$served" "$files"
        cp "$root/LICENSE" "$files"
        # Folders with a module of their own are not part of this one.
        tar -c --exclude ./gocron --exclude ./bench . | tar -x -C "$files"
        cp go.mod "$served/v$version.mod"
        printf '{"Version":"v%s"}\n' "$version" >"$served/v$version.info"
        # An archive of a module has no folders as entries.
        python3 - "$tmp/${name%%/*}" "$served/v$version.zip" <<'END'
import sys, zipfile
from pathlib import Path
root = Path(sys.argv[1])
with zipfile.ZipFile(sys.argv[2], "w", zipfile.ZIP_DEFLATED) as archive:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            archive.write(path, path.relative_to(root.parent))
END
        rm -r "$tmp/${name%%/*}"
        ls "$served/v$version.zip"
    done
    ;;
*)
    echo "usage: client.sh python|node|java|rust|go" >&2
    exit 2
    ;;
esac
