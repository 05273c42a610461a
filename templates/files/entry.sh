#!/bin/bash
# Runs the image's command inside the activated environment, in place of this shell.
set -eu
mkdir -p "${HOME:-/tmp/home}" 2>/dev/null || true
if [ -d /opt/env/etc/conda/activate.d ]; then
    # Activation scripts are written for interactive shells and may test unset variables.
    set +eu
    for script in /opt/env/etc/conda/activate.d/*.sh; do
        # shellcheck disable=SC1090 # whichever the installed packages brought
        [ -r "$script" ] && . "$script"
    done
    set -eu
fi
exec "$@"
