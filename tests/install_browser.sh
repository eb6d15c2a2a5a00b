#!/bin/sh
# Installs Chromium for the tests of pages where the user may: as root, or by sudo without a password, with apt-get.
# Where that is not possible the tests of pages are skipped; this script never fails.
set -u
for name in chromium google-chrome chrome; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
reason="install chromium with the system's package manager to run them"
if command -v apt-get >/dev/null 2>&1; then
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true >/dev/null 2>&1; then as_root="sudo -n"; else as_root="no"; fi
  fi
  if [ "$as_root" != no ]; then
    echo "installing chromium for the tests of pages"
    export DEBIAN_FRONTEND=noninteractive
    if $as_root apt-get update -qq >/dev/null 2>&1 &&
      $as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; then
      exit 0
    fi
    reason="apt-get could not install it"
  fi
fi
echo "no Chromium: tests of pages are skipped ($reason)"
exit 0
