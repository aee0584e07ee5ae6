#!/bin/sh
# What an image runs: the command it is given, in this very process, and never as root.
# Started as root (START_AS=0, or --user 0), it gives the volume to the image's user, then becomes it.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown glasshouse:glasshouse /runs || true # the line below says it, if it matters
    export HOME=/home/glasshouse
    exec setpriv --reuid=glasshouse --regid=glasshouse --clear-groups -- sh "$0" "$@"
fi
if [ ! -w /runs ]; then
    echo "warning: /runs belongs to another user, and this one ($(id -u):$(id -g)) cannot write there. Start with" \
        "--user \$(id -u):\$(id -g), or give the directory away: chown 1000:1000." >&2
fi
exec "$@"
