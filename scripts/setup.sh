#!/usr/bin/env bash
# Makes sure that what the Makefile needs is there. As root on Debian it installs missing packages,
# otherwise it names them. Does nothing, and asks no network, when all is there.
#
#   scripts/setup.sh build   Go, a C compiler with the C library's headers, make, git
#   scripts/setup.sh modules the Go modules of all packages and their tests
#   scripts/setup.sh net     libfabric, its headers and those of libibverbs, for the tests of the inter-node path (goes on without)
#   scripts/setup.sh lint    shellcheck (goes on without)
#   scripts/setup.sh pictures a browser without a screen, for the tests that look at pictures
#   scripts/setup.sh testbed what scripts/testbed.sh makes hosts of: network namespaces, sshd, packet filter; MPICH, Slurm
#   scripts/setup.sh rxe     what scripts/rxe.sh makes virtual machines with Soft-RoCE of: QEMU, busybox, verbs programs, a kernel
#   scripts/setup.sh contenders  Open MPI and PyTorch, which the benchmarks of launchers compare with
#   scripts/setup.sh cuda    a C++ compiler; python3 with pip where there is no nvcc that serves (scripts/cuda-toolchain.sh)
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail

readonly GO_MINOR=26 # Go 1.26 or newer
again=$(dirname "${BASH_SOURCE[0]}")/again.sh
readonly again

missing=() # Debian packages

say() { printf 'setup: %s\n' "$*" >&2; }

# need PACKAGE COMMAND...: the package is missing when the command fails.
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 </dev/null || missing+=("$package")
}

# compiles COMPILER LANGUAGE: true if a program with the C library can be made.
compiles() {
  printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' | "$1" -x "$2" - -o /dev/null
}

check_go() {
  local version minor
  if ! version=$(go env GOVERSION 2>/dev/null); then
    say "Go 1.$GO_MINOR or newer is needed: https://go.dev/dl/"
    return 1
  fi
  minor=${version#go1.}
  minor=${minor%%[!0-9]*}
  if [ -n "$minor" ] && [ "$minor" -lt "$GO_MINOR" ]; then
    say "Go 1.$GO_MINOR or newer is needed, this is $version: https://go.dev/dl/"
    return 1
  fi
}

have_libfabric() { PATH=$PATH:/sbin ldconfig -p | grep libfabric.so.1; }
have_browser() { command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome; }
have_font() { find /usr/share/fonts /usr/local/share/fonts -name '*.ttf' -print -quit | grep .; }

# install_missing: true if nothing is missing any more.
install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    say "missing; as root: apt-get install -y ${missing[*]}"
    return 1
  fi
  say "installing ${missing[*]}"
  local log
  if ! log=$(apt_install 2>&1); then
    printf '%s\n' "$log" >&2
    say "apt-get could not install ${missing[*]}"
    return 1
  fi
}

# An index that cannot be fetched matters only if something that is to be installed is in it.
apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  "$again" sh -c 'apt-get update -qq || :
    apt-get install -y -qq --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"' sh "${missing[@]}"
} </dev/null

case ${1:-build} in
  build)
    need gcc compiles "${CC:-gcc}" c
    need libc6-dev compiles "${CC:-gcc}" c
    need make command -v make
    need git command -v git
    install_missing
    check_go
    ;;
  modules)
    check_go
    "$again" go list -deps -test -tags testbed,chromium,rxe ./... >/dev/null
    ;;
  net)
    need libfabric1 have_libfabric
    need libfabric-dev test -e /usr/include/rdma/fabric.h
    need libibverbs-dev test -e /usr/include/infiniband/efadv.h
    install_missing || say "going on without"
    ;;
  lint)
    need shellcheck command -v shellcheck
    install_missing || say "going on without"
    ;;
  pictures)
    need chromium-headless-shell have_browser
    need fonts-dejavu-core have_font
    install_missing
    ;;
  testbed)
    PATH=$PATH:/usr/sbin:/sbin
    need iproute2 command -v ip
    need openssh-server command -v sshd
    need openssh-client command -v ssh
    need nftables command -v nft
    need mpich command -v mpicc.mpich
    need libmpich-dev test -e /usr/include/x86_64-linux-gnu/mpich/mpi.h -o -e /usr/include/mpich/mpi.h
    need slurm-wlm command -v slurmctld
    need munge command -v munged
    need libfabric1 have_libfabric
    install_missing
    ;;
  rxe)
    PATH=$PATH:/usr/sbin:/sbin
    need qemu-system-x86 command -v qemu-system-x86_64
    need busybox-static test -x /bin/busybox
    need dash command -v dash
    need ibverbs-providers test -e /etc/libibverbs.d/rxe.driver
    need perftest command -v ib_write_bw
    need iproute2 command -v rdma
    need kmod command -v modprobe
    need cpio command -v cpio
    need util-linux command -v setpriv
    install_missing
    "$again" "${BASH_SOURCE[0]%/*}/rxe.sh" kernel
    ;;
  contenders)
    need openmpi-bin command -v mpirun.openmpi
    need python3-torch /usr/bin/python3 -c 'import torch.distributed.run'
    install_missing || say "going on without"
    ;;
  cuda)
    need g++ compiles "${CXX:-g++}" c++
    if ! "$(dirname "${BASH_SOURCE[0]}")/cuda-toolchain.sh" --have >/dev/null 2>&1; then # which pip is to install
      need python3 command -v python3
      need python3-pip python3 -m pip --version
    fi
    install_missing
    ;;
  *)
    say "unknown group \"$1\"; known: build, modules, net, lint, pictures, testbed, rxe, contenders, cuda"
    exit 2
    ;;
esac
