#!/bin/sh
# What the checks in JavaScript need: node with npm, the packages of package.json, and a Chromium.
set -eu
cd "$(dirname "$0")"

# install COMMAND PACKAGE...: from Debian or Ubuntu where the command is not there, and this may.
install() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "web: $1 is not there; install it" >&2
        exit 1
    fi
    shift
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

install npm nodejs npm
[ -n "${CHROMIUM:-}" ] || install chromium chromium
# Nothing is to run at install: onnxruntime-node would download what only a GPU needs.
npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
