#!/bin/sh
# The entry point of an image: trains its experiment with the arguments of `docker run`, never as root.
# Started as root (START_AS=0:0, or --user 0), it gives the volume to the user of the image and switches to it.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown glasshouse:glasshouse /runs || true # if this matters, the check below reports it
    export HOME=/home/glasshouse
    exec setpriv --reuid=glasshouse --regid=glasshouse --clear-groups -- sh "$0" "$@"
fi
if [ ! -w /runs ]; then
    echo "warning: user $(id -u):$(id -g) cannot write to /runs. Start the container with" \
        "--user \$(id -u):\$(id -g), or change the owner of the directory: chown 1000:1000." >&2
fi
exec python3 "training/$GLASSHOUSE_EXPERIMENT/train.py" "out=/runs/$GLASSHOUSE_EXPERIMENT" "$@"
