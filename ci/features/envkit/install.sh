#!/bin/sh
# Installs envkit into a separate environment, so that its packages do not conflict with the project's.
# Runs as root while a dev container is built; the options are environment variables.
set -eu

requirement=${REQUIREMENT:-}
choice=${PYTHON:-auto}
tools=${TOOLS:-true}
prefix=${PREFIX:-/usr/local}

fail() {
    echo "envkit: $1" >&2
    exit 1
}

# What can mean one thing only: a file or a version by its hashes, or a commit. `envkit export` checks the same.
line='(https://[A-Za-z0-9.-]+(:[0-9]+)?/([A-Za-z0-9._~%+@-]+/)*envkit_gpu-[A-Za-z0-9_.+!-]+\.(whl|tar\.gz)|(\.{1,2}/|/)?([A-Za-z0-9_.+-]+/)*envkit_gpu-[A-Za-z0-9_.+!-]+\.(whl|tar\.gz)|envkit-gpu==[0-9][A-Za-z0-9.!+_]*)( --hash=sha256:[0-9a-f]{64})+|git\+(https|ssh)://(git@)?[A-Za-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._~%+/-]+@[0-9a-f]{40}'
if printf '%s\n' "$requirement" | grep -Evqx -- "$line"; then
    fail "requirement: '$requirement' is not a file with its --hash=sha256:, a commit, or a version with hashes"
fi

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
# pip checks the hash of the file, then installs it with its dependencies.
wheels=$(mktemp -d)
printf '%s\n' "$requirement" > "$wheels/requirement.txt"
pip() { "$prefix/lib/envkit/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip wheel --no-deps --wheel-dir "$wheels" --requirement "$wheels/requirement.txt"
pip install "$wheels"/envkit_gpu-*.whl
rm -rf "$wheels"
ln -sf "$prefix/lib/envkit/bin/envkit" "$prefix/bin/envkit"
"$prefix/bin/envkit" --version
