#!/bin/bash
# An SSH server on port 2222 for the image's own user, without root. Its host key is made at the first start; put
# public keys into $HOME/.ssh/authorized_keys.
set -eu
umask 077
mkdir -p "$HOME/.ssh"
if [ ! -f "$HOME/.ssh/host_ed25519" ]; then
    ssh-keygen -q -t ed25519 -N "" -f "$HOME/.ssh/host_ed25519"
fi
exec /usr/sbin/sshd -D -e -p 2222 -h "$HOME/.ssh/host_ed25519" \
    -o PidFile="$HOME/.ssh/sshd.pid" -o PasswordAuthentication=no -o UsePAM=no \
    -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys" "$@"
