#!/bin/sh
# What an image runs: the command it is given, in this very process, and never as root.
# Started as root (START_AS=0, or --user 0), it gives the volume to the image's user, then becomes it.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown glasshouse:glasshouse /runs
    export HOME=/home/glasshouse
    exec setpriv --reuid=glasshouse --regid=glasshouse --clear-groups -- "$@"
fi
if [ ! -w /runs ]; then
    echo "error: /runs belongs to another user (this is $(id -u):$(id -g)): start with --user \$(id -u):\$(id -g)," \
        "or give the directory away with chown 1000:1000." >&2
    exit 2
fi
exec "$@"
