#!/bin/sh
# Regenerates the committed code of every .proto file, with tools from the Go module proxy at the versions
# that scripts/protogen/go.mod pins. Run it after a change to a .proto file; then
#   go test ./internal/session/sessionpb -update
# records what was added, and refuses what would break older builds.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/.tools/protogen
(cd scripts/protogen && GOBIN=$tools go install . tool)
"$tools/protogen" -I . -plugins "$tools/protoc-gen-go,$tools/protoc-gen-go-grpc" \
    internal/session/sessionpb/session.proto
