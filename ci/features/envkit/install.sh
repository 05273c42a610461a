#!/bin/sh
# Installs envkit into a separate environment, so that its packages do not conflict with the project's.
# Runs as root while a dev container is built; the options are environment variables.
set -eu

requirement=${REQUIREMENT:-envkit==0.2.0}
choice=${PYTHON:-auto}
tools=${TOOLS:-true}
prefix=${PREFIX:-/usr/local}

fail() {
    echo "envkit: $1" >&2
    exit 1
}

# ensurepip is checked, too: Debian's python3 has venv without it unless python3-venv is installed.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3; do
        if usable "$name"; then
            command -v "$name"
            return
        fi
    done
}

from_apt() {
    command -v apt-get >/dev/null || return 1
    [ -n "$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -n 1)" ] || apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

if [ "$choice" = auto ]; then
    python=$(find_python)
    if [ -z "$python" ]; then
        from_apt python3-venv || fail "no Python 3.11 or newer, and no apt-get to install it: use an image that has one"
        python=$(find_python)
    fi
    [ -n "$python" ] || fail "the system's Python is older than 3.11: add the feature ghcr.io/devcontainers/features/python"
else
    usable "$choice" || fail "python: $choice is not Python 3.11 or newer with venv and ensurepip"
    python=$choice
fi

if [ "$tools" = true ]; then
    missing=
    command -v bwrap >/dev/null || missing="$missing bubblewrap"
    command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
    # shellcheck disable=SC2086 # split into package names
    [ -z "$missing" ] || from_apt $missing || echo "envkit: not installed:$missing (no apt-get)" >&2
fi

rm -rf "$prefix/lib/envkit"
mkdir -p "$prefix/lib" "$prefix/bin"
"$python" -m venv "$prefix/lib/envkit"
"$prefix/lib/envkit/bin/python" -m pip install --quiet --disable-pip-version-check "$requirement"
ln -sf "$prefix/lib/envkit/bin/envkit" "$prefix/bin/envkit"
"$prefix/bin/envkit" --version
