#!/bin/sh
# A root filesystem for one role without any engine or registry: Debian's packages (mmdebstrap) and a folder of wheels.
#
#   make wheelhouse EXTRAS=coordinator,postgres
#   sh deploy/containers/root.sh build/wheelhouse build/root-coordinator      (as root)
#   tar -C build/root-coordinator -c . | podman import --change USER=10001:10001 - tributary-coordinator
#
# It refuses a result of more than 800 MB, or than a third word says: both roles in one are no image of ours.
set -eu
wheels=$1 out=$2 most=${3:-800}
# As in Debian's own images: the package that says so of /usr, and not the one that converts it with 46 MB of Perl.
mmdebstrap --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include=python3,python3-venv bookworm "$out"
mkdir "$out/wheelhouse"
mount --bind "$wheels" "$out/wheelhouse"
trap 'umount "$out/wheelhouse"; rmdir "$out/wheelhouse"' EXIT
chroot "$out" python3 -m venv /opt/tributary
chroot "$out" unshare --net /opt/tributary/bin/python -m pip install --no-index --require-hashes --no-cache-dir \
  --find-links /wheelhouse/wheels -r /wheelhouse/requirements.txt
chroot "$out" /opt/tributary/bin/python -m pip uninstall --yes pip setuptools
# What libraries test themselves with; numpy's is imported by its own numpy.testing.
find "$out/opt/tributary" -type d -name tests -not -path "*/numpy/*" -prune -exec rm -r {} +
chroot "$out" useradd --system --uid 10001 --user-group --home-dir /state --shell /usr/sbin/nologin tributary
install -d -o 10001 -g 10001 -m 0700 "$out/state"
rm -rf "$out"/var/lib/apt/lists/* "$out"/var/cache/apt/* "$out"/usr/share/doc/* "$out"/usr/share/man/* \
  "$out"/usr/share/locale/*
size=$(du -sm --exclude="$out/wheelhouse" "$out" | cut -f1)
echo "$out: $size MB"
[ "$size" -le "$most" ]
