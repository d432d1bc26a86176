#!/usr/bin/env bash
# Sets up what is missing, and nothing that is there.
#
#   scripts/setup.sh packages    .venv with the packages of constraints.txt: enough for `make check`
#   scripts/setup.sh everything  also Java and Delta's jars: what Spark needs
#   scripts/setup.sh warm        also what the tests need: a Kafka broker, HDFS, S3's client, and Spark's classes as Java keeps them (dozens of starts take less time)
#   scripts/setup.sh servers     the servers of Google Cloud Storage and S3 that Go builds: what the tests need at night
#   scripts/setup.sh matrix N    what the tests of `make matrix` need in .venvs/N, with the older versions of constraints/N.txt
#   scripts/setup.sh night N     also a Kafka broker, and Spark's sources for Kafka and Avro: what the tests with older versions need at night
#
# Each part leaves a stamp when it is whole, so that an interrupted set-up can simply be run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

part=${1:-everything} point=${2:-}
venv=.venv pins=constraints.txt pythons=(python3.11 python3.12 python3.13 python3 python)
case $point in
'') ;;
spark-4.0) venv=.venvs/$point pins=constraints/$point.txt pythons=(python3.12) ;;
spark-4.1) venv=.venvs/$point pins=constraints/$point.txt pythons=(python3.13) ;;
*) echo "There is no point '$point': use spark-4.0 or spark-4.1." >&2 && exit 1 ;;
esac
python=$venv/bin/python
log=setup.log
space_needed_mib=3072
oldest_java=17
child=
export PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { # one sentence that says what is wrong, one that says what to do
    printf '\nSet-up stopped: %s\n%s\n' "$1" "$2" >&2
    exit 1
}

stop_child() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    printf '\nSet-up was interrupted; run the same command again to go on.\n' >&2
    exit 130
}
trap stop_child INT TERM

# Runs a command with its output in the log, and shows meanwhile how long it takes and what it does. Returns the command's exit code.
watched() { # what command…
    local what=$1 began=$SECONDS last code=0
    shift
    printf '\n== %s: %s\n' "$what" "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        last=$(tail -n 1 "$log" | sed -E 's/\r//g; s/^ +//; /^==/d')
        if [ -t 1 ]; then
            printf '\r\033[K  %s … %d s  %s' "$what" $((SECONDS - began)) "${last:0:70}"
            sleep 0.5
        else
            ((SECONDS % 3)) || printf '  %s … %d s  %s\n' "$what" $((SECONDS - began)) "${last:0:70}"
            sleep 1
        fi
    done
    wait "$child" || code=$?
    child=
    [ ! -t 1 ] || printf '\r\033[K'
    [ "$code" -ne 0 ] || printf '  %s: done in %d s\n' "$what" $((SECONDS - began))
    return "$code"
}

# Ends the set-up after a failed download or installation.
explain() { # what
    local said
    said=$(tail -n 200 "$log")
    if grep -qiE 'no space left|os error 28|disk quota' <<<"$said"; then
        fail "the disk is full." "Free $((space_needed_mib / 1024)) GiB where this clone and your caches are (df -h . ~), then run the same command again."
    fi
    if grep -qiE 'dns error|name resolution|name or service|failed to (connect|fetch)|connection (refused|reset|error)|error sending request|newconnectionerror|timed out|network is unreachable|unknownhost|host [^ ]+ not found|server access error|offline|nodename nor servname|not resolve' <<<"$said"; then
        fail "$1 could not be downloaded: there is no network, or it does not reach the package registries." \
            "Connect, or name a mirror (PIP_INDEX_URL, UV_DEFAULT_INDEX, Ivy settings), then run the same command again; the details are in $log."
    fi
    tail -n 20 "$log" >&2
    fail "$1 could not be installed, for the reason above." "The whole output is in $log; when the cause is gone, run the same command again."
}

check_space() {
    local free_mib
    free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free_mib" -ge "$space_needed_mib" ] ||
        fail "only $free_mib MiB are free here, and the packages need $space_needed_mib." "Free some space on this disk, then run the same command again."
}

check_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java shown version
    local remedy="Install Java $oldest_java or newer (Debian, Ubuntu: apt install openjdk-$oldest_java-jre-headless; macOS: brew install openjdk@$oldest_java), or point JAVA_HOME at one."
    # Told apart by the answer, not by the name: macOS has a java that only offers to install one.
    shown=$("$java" -version 2>&1) || fail "Spark needs Java, and '$java' does not run." "$remedy"
    version=$(sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' <<<"$shown" | head -n 1)
    [ -n "$version" ] || fail "'$java -version' does not tell its version: $(head -n 1 <<<"$shown")" "$remedy"
    [ "$version" -ge "$oldest_java" ] || fail "Spark needs Java $oldest_java or newer, and '$java' is Java $version." "$remedy"
}

find_python() {
    local name
    # pyenv has versions that are not on the PATH.
    for name in "${pythons[@]}" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${pythons[0]#python}".*/bin/python; do
        # A version manager's shim may be on the PATH and yet not run.
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    [ -z "$point" ] || fail "no ${pythons[0]} with its venv module is on the PATH." "Install it, then run the same command again."
    fail "no Python 3.11 or newer with its venv module is on the PATH." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.11), then run the same command again."
}

# What the packages depend on: a change of any of it installs anew. Scripts of a .venv name its place.
packages_key() {
    { pwd && cat pyproject.toml "$pins" scripts/setup.sh; } | cksum
}

pinned() { # name…: their lines of the pins, with the hashes
    local name
    for name in "$@"; do sed -n "/^$name==/,/[^\\\\]\$/p" "$pins"; done
}

install_packages() {
    local stamp=$venv/.packages found wanted
    wanted=$(packages_key)
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
    [ ! -L "$venv" ] || fail "$venv is a link to $(readlink "$venv"), an environment of somebody else. Nothing was changed." \
        "Remove the link (rm $venv), then run the same command again."
    check_space
    found=$(find_python)
    : >"$log"
    echo "Setting up $venv (once; a few minutes with a cold cache)."
    rm -f "$stamp"
    # Made anew where it is unfinished, of a Python that is gone, or was moved: its scripts would name the old place.
    if [ "$("$python" -c 'import sys; print(sys.prefix)' 2>/dev/null)" != "$PWD/$venv" ] ||
        ! grep -qF "$PWD/$venv" "$venv/bin/activate" 2>/dev/null; then
        watched "virtual environment" "$found" -m venv --clear "$venv" || explain "The virtual environment"
    fi
    # Registries that pip was told of, uv is told of as well.
    local index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=$index; fi
    pinned pip setuptools wheel packaging >"$venv/.build.txt"
    watched "installer" "$python" -m pip install --require-hashes -r "$venv/.build.txt" || explain "The installer"
    local installer=("$python" -m uv pip install --python "$python") installed=$pins
    pinned uv >"$venv/.uv.txt"
    if ! watched "uv" "$python" -m pip install --require-hashes --only-binary :all: -r "$venv/.uv.txt"; then
        installer=("$python" -m pip install) installed=$venv/.pins.txt # there is no uv for this platform; pip does the same, slower
        sed '/^uv==/,/[^\\]$/d' "$pins" >"$installed"
    fi
    # What is built, is built with the pinned tools that are installed: an isolated build would fetch others.
    watched "packages" "${installer[@]}" --no-build-isolation --require-hashes -r "$installed" || explain "The packages"
    watched "project" "${installer[@]}" --no-build-isolation --no-deps -e . || explain "The project"
    echo "$wanted" >"$stamp"
}

jars_are_there() { # stamp: it lists them; the cache they are in belongs to the user, who may empty it, or have other jars in it
    "$python" -m scripts.jar_hashes "$1" 2>>"$log"
}

fetch_jars() {
    if jars_are_there "$venv/.jars"; then return; fi
    watched "Delta's jars" "$python" -m scripts.fetch_jars "$venv/.jars" || explain "Delta's jars"
}

fetch_service_jars() {
    local broker=$venv/.kafka-broker.jars sources=$venv/.source.jars hdfs=$venv/.hdfs.jars s3=$venv/.s3.jars azure=$venv/.azure.jars
    if jars_are_there "$broker" && jars_are_there "$sources" && jars_are_there "$hdfs" && jars_are_there "$s3" &&
        jars_are_there "$azure" && [ "$azure" -nt scripts/fetch_service_jars.py ]; then return; fi
    watched "Jars for the tests" "$python" -m scripts.fetch_service_jars "$broker" "$sources" "$hdfs" "$s3" "$azure" ||
        explain "Jars for the tests"
}

install_azurite() { # the server of Azure's storage; without npm the tests that need it are left out
    local azurite=$venv/azurite
    if ! command -v npm >/dev/null || cmp -s scripts/azurite/package-lock.json "$azurite/installed.json"; then return; fi
    rm -rf "$azurite"
    mkdir -p "$azurite"
    cp scripts/azurite/package*.json "$azurite"
    watched "Azurite" npm ci --prefix "$azurite" --ignore-scripts --no-audit --no-fund || explain "Azurite"
    cp scripts/azurite/package-lock.json "$azurite/installed.json"
}

install_google() { # a server of Google Cloud Storage, and Spark's client; without Go and Maven the nightly tests that need them are left out
    local google=$PWD/$venv/google jar=gcs-connector-4.0.4-shaded.jar
    if ! command -v go >/dev/null || ! command -v mvn >/dev/null || jars_are_there "$venv/.google.jars"; then return; fi
    watched "fake-gcs-server" env GOBIN="$google" go install github.com/fsouza/fake-gcs-server@v1.56.1 || explain "fake-gcs-server"
    watched "Google's connector" mvn -q dependency:copy -DoutputDirectory="$google" \
        -Dartifact=com.google.cloud.bigdataoss:gcs-connector:4.0.4:jar:shaded || explain "Google's connector"
    "$python" -c 'import sys; from pathlib import Path; from scripts.jar_hashes import write_list; write_list(Path(sys.argv[1]), sys.argv[2:])' \
        "$venv/.google.jars" "$google/$jar"
}

install_versitygw() { # a server of S3; without Go the nightly tests that need it are left out
    local gateway=$PWD/$venv/versitygw module=github.com/versity/versitygw version=v1.8.0
    if ! command -v go >/dev/null || grep -qF "$module"$'\t'"$version" <<<"$(go version -m "$gateway/versitygw" 2>/dev/null)"; then return; fi
    watched "versitygw" env GOBIN="$gateway" go install "$module/cmd/versitygw@$version" || explain "versitygw"
}

keep_classes() { # of use only: without them every start of Spark is some seconds slower
    ! compgen -G "$venv/share/spark-jobs/*.jsa" >/dev/null || return 0
    watched "Spark's classes" "$python" -m spark_jobs warm-up || echo "  Spark's classes could not be kept: the tests take longer. The reason is in $log."
}

case $part in
packages) install_packages ;;
everything)
    check_java
    install_packages
    fetch_jars
    ;;
warm)
    check_java
    install_packages
    fetch_jars
    fetch_service_jars
    install_azurite
    keep_classes
    ;;
night)
    [ -n "$point" ] || fail "no point is named." "Use: scripts/setup.sh night spark-4.0"
    check_java
    install_packages
    fetch_jars
    fetch_service_jars
    : >"$venv/.s3.jars" # S3's client is that of a newer Hadoop, and so is Azure's
    : >"$venv/.azure.jars"
    ;;
servers)
    install_google
    install_versitygw
    ;;
matrix)
    [ -n "$point" ] || fail "no point is named." "Use: scripts/setup.sh matrix spark-4.0"
    check_java
    install_packages
    fetch_jars
    touch "$venv/.source.jars" "$venv/.s3.jars" "$venv/.azure.jars" # the sample reads no Kafka and no Avro, and is not in a store
    ;;
*) fail "there is no part '$part'." "Use: scripts/setup.sh [packages | everything | warm | servers | matrix POINT | night POINT]" ;;
esac
