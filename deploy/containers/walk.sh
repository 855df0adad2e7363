#!/bin/sh
# Both roles in Podman, each from a folder of root.sh or an image: from an invitation to a release that is answered from.
#
#   sh deploy/containers/walk.sh build/root-coordinator build/root-site      (as root; leaves nothing behind)
#   sh deploy/containers/walk.sh tributary-coordinator tributary-site
#
# Neither has a network: they share one loopback. PODMAN may be Podman with options, RUN options of `podman run`.
set -eu
podman=${PODMAN:-podman}
made=$(mktemp -d)
trap '$podman rm --force --time 0 walk-coordinator > "$made/removed" 2>&1 || true
$podman rmi --force walk-coordinator walk-site > "$made/removed" 2>&1 || true
rm -rf "$made"' EXIT
chmod 755 "$made"
image() {
  if [ ! -d "$2" ]; then $podman tag "$2" "$1"; return; fi
  tar -C "$2" -c . | $podman import --quiet --change USER=10001:10001 \
    --change "ENV PATH=/opt/tributary/bin:/usr/bin:/bin" - "$1" > "$made/id"
}
image walk-coordinator "$1"
image walk-site "$2"
shut="--read-only --cap-drop all --security-opt no-new-privileges --tmpfs /tmp --workdir /state --entrypoint= --env HOME=/state
  --env OMP_NUM_THREADS=1 --env TRIBUTARY_PASSPHRASE=only-for-this-walk ${RUN:-}"
install -d -o 10001 -g 10001 -m 700 "$made/hub" "$made/site"
hub="$shut --env TRIBUTARY_COORDINATOR_HOME=/state/home --volume $made/hub:/state walk-coordinator"
site() {
  # shellcheck disable=SC2086
  $podman run --rm --network container:walk-coordinator $shut --env TRIBUTARY_SITE_HOME=/state/home \
    --volume "$made/site:/state" --volume "$made/tables:/tables:ro" walk-site "$@"
}
served() { $podman exec walk-coordinator "$@"; }

# shellcheck disable=SC2086
$podman run --rm --network none $hub sh -eu -c "
  tributary example first
  coordinator init --address localhost:8443 --listen 127.0.0.1:8443
  coordinator plan sign first.toml
  coordinator invite north --study first --out north.invitation"
install -d -m 755 "$made/tables"
install -m 644 "$made/hub/north.csv" "$made/tables/north.csv"
install -o 10001 -g 10001 -m 600 "$made/hub/north.invitation" "$made/site/north.invitation"
# shellcheck disable=SC2086
$podman run --detach --name walk-coordinator --network none $hub coordinator serve --health 127.0.0.1:9464
served python -c '
import time, urllib.request as ask
for _ in range(240):
    try:
        print(ask.urlopen("http://127.0.0.1:9464/readyz").read().decode())
        break
    except OSError:
        time.sleep(0.5)
else:
    raise SystemExit("it never was ready")'

site site-agent init --invitation north.invitation --approver ines
heard=$(site sh -eu -c 'site-agent join --json | python3 -c "import json, sys; print(json.load(sys.stdin)[\"fingerprint\"])"')
served coordinator accept north --fingerprint "$heard"
site sh -eu -c '
  site-agent join
  site-agent plan fetch first
  site-agent data add /tables/north.csv --as first
  site-agent plan approve first --as ines --understood local
  id=$(site-agent release first --wave 1 --json | python3 -c "import json, sys; print(json.load(sys.stdin)[\"release_id\"])")
  site-agent approve "$id" --as ines
  site-agent status --json > /tmp/healthy
  if touch /opt/x 2> /tmp/x; then echo the root is writable; exit 1; fi
  if touch /tables/x 2> /tmp/x; then echo the tables are writable; exit 1; fi'
served coordinator releases --study first
served coordinator pool first --estimand adjusted --term sbp/10
$podman stop --time 90 walk-coordinator
ended=$($podman inspect --format '{{.State.ExitCode}}' walk-coordinator)
echo "the coordinator ended with $ended"
[ "$ended" = 0 ]
