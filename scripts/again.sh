#!/usr/bin/env bash
# Runs a command that asks the network, and runs it again when it fails: a mirror that hiccups once is no reason to fail.
#
#   scripts/again.sh COMMAND...   up to four times, 2, 5 and 15 s apart; its status is the last one's
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -uo pipefail

for wait in 2 5 15; do
  "$@" && exit 0
  printf 'again: "%s" failed (%d); once more in %d s\n' "$*" "$?" "$wait" >&2
  sleep "$wait"
done
exec "$@"
