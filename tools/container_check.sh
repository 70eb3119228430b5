#!/usr/bin/env bash
# Do the container files that `gdpfed flower init --container` writes build, and do their programs run in the image?
# Without a registry of images: the base is Debian's own Python, by debootstrap, and gdpfed is this tree's wheel.
# Needs root, buildah and debootstrap (Debian's packages), and the environment that `make test` makes.
#
#   tools/container_check.sh
#
# PIP_FIND_LINKS, if it is a folder, is mounted for pip; PIP_CERT, too.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${TOOLS:-.venv}/bin/python
work=$(mktemp -d)
containers=()
# The superlink that was started here, and nothing else.
superlink=
finish() {
  [ -z "$superlink" ] || kill -- "-$superlink" 2> /dev/null || true
  [ ${#containers[@]} = 0 ] || buildah rm "${containers[@]}" > /dev/null
  buildah rmi localhost/gdpfed-check localhost/gdpfed-check-base > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
answers() { (exec 3<> /dev/tcp/127.0.0.1/9093) 2> /dev/null; }
if answers; then
  echo "something else answers at 127.0.0.1:9093 already: end it first"
  exit 1
fi

echo "== base"
debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip bookworm "$work/root" \
  http://deb.debian.org/debian > "$work/base.log" 2>&1 || { tail "$work/base.log"; exit 1; }
# As in the images of docker.io: python and pip are for whoever builds on it.
rm "$work"/root/usr/lib/python3*/EXTERNALLY-MANAGED
ln -s python3 "$work/root/usr/bin/python"
base=$(buildah from scratch)
containers+=("$base")
buildah add --quiet "$base" "$work/root" / > /dev/null
buildah commit --quiet "$base" localhost/gdpfed-check-base > /dev/null

echo "== build"
mkdir "$work/dist"
"$python" -m build --wheel --outdir "$work/dist" . > "$work/build.log" 2>&1 || { tail "$work/build.log"; exit 1; }
cp constraints.txt "$work/dist"
mounts=(--volume "$work/dist:/dist:ro" --volume "$work/pip.conf:/etc/pip.conf:ro")
printf '[global]\nconstraint = /dist/constraints.txt\nfind-links = /dist' > "$work/pip.conf"
if [ -d "${PIP_FIND_LINKS:-}" ]; then
  printf ' %s' "$PIP_FIND_LINKS" >> "$work/pip.conf"
  mounts+=(--volume "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
fi
if [ -f "${PIP_CERT:-}" ]; then
  printf '\ncert = /dist/cert.pem' >> "$work/pip.conf"
  cp "$PIP_CERT" "$work/dist/cert.pem"
fi
echo >> "$work/pip.conf"
"$python" -m gdpfed flower init "$work/home" --host 127.0.0.1 --container > /dev/null
buildah build --quiet --isolation chroot --build-arg BASE=localhost/gdpfed-check-base "${mounts[@]}" \
  --tag localhost/gdpfed-check "$work/home/container" > "$work/image.log" 2>&1 || { tail "$work/image.log"; exit 1; }

echo "== run"
made=$(buildah from localhost/gdpfed-check)
containers+=("$made")
# As compose.yaml says: its user first, then the words of its command.
mapfile -t stated < <("$python" - "$work/home/container/compose.yaml" << 'END'
import sys, yaml
service = yaml.safe_load(open(sys.argv[1]))["services"]["superlink"]
print(service["user"], *service["command"], sep="\n")
END
)
inside() {
  buildah run --isolation chroot --user "${stated[0]}" --volume "$work/home:/home/gdpfed/home" \
    --env FLWR_HOME=/home/gdpfed/home/flower --env FLWR_TELEMETRY_ENABLED=0 "$made" -- "$@"
}
inside gdpfed --version
inside flower-superlink --version
set -m
inside "${stated[@]:1}" > "$work/superlink.log" 2>&1 &
superlink=$!
for _ in $(seq 60); do
  if answers; then
    echo "the superlink of compose.yaml answers at 127.0.0.1:9093, behind the gate"
    exit 0
  fi
  sleep 1
done
tail "$work/superlink.log"
exit 1
