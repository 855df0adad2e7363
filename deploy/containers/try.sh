#!/bin/sh
# Run a coordinator in a root filesystem made by root.sh: read-only, as user 10001, in namespaces without a network.
#
#   sh deploy/containers/try.sh build/root-coordinator      (as root; leaves nothing behind)
set -eu
root=$(realpath "$1")
exec unshare --mount --pid --net --ipc --uts --fork --kill-child sh -eu -c '
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t tmpfs -o size=512m,uid=10001,gid=10001,mode=0700 tmpfs "$1/state"
mount -t tmpfs -o size=256m,mode=1777 tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
ip link set lo up
exec chroot "$1" setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  env -i PATH=/opt/tributary/bin:/usr/bin:/bin HOME=/state OMP_NUM_THREADS=1 TRIBUTARY_COORDINATOR_HOME=/state/home sh -eu -c "
    coordinator init --name hub --address 127.0.0.1:8443 --listen 127.0.0.1:8443 --lead ada --json > /state/made
    coordinator serve --health 127.0.0.1:9464 & served=\$!
    python -c \"
import time, urllib.request as ask
for _ in range(240):
    try:
        print(ask.urlopen(\\\"http://127.0.0.1:9464/readyz\\\").read().decode()); break
    except OSError:
        time.sleep(.5)
else:
    raise SystemExit(\\\"it never was ready\\\")
\"
    if touch /opt/x 2>/dev/null; then echo the root is writable; exit 1; fi
    kill -TERM \$served; wait \$served; echo ended with \$?"
' sh "$root"
