#!/usr/bin/env bash
# Real RDMA verbs without RDMA hardware: two virtual machines g1 and g2, each with two Soft-RoCE NICs. Needs what
# `scripts/setup.sh rxe` installs; neither KVM, nor root, nor anything of this host's network.
#
#   scripts/rxe.sh run [-s SECONDS] [-p PROGRAM]... COMMAND [ARG]...
#       boots both, runs COMMAND (a program of this host) on g1, shows what it prints, ends with its status. Ends both
#       after SECONDS (150). PROGRAMs go into /bin of both. Status 99: no status came, the reason is on stderr.
#   scripts/rxe.sh kernel
#       fetches the kernel, unless it is there: Debian's own, unpacked into .tools/rxe, not installed
#
# In a machine: bin/mkrun and build/libmknet.so of this tree, busybox, ip, tc, rdma, ib_write_bw, ib_write_lat. eth0 is
# for control: 10.9.0.1 on g1, 10.9.0.2 on g2. rxe0 is on eth1 (10.9.1.x), rxe1 on eth2 (10.9.2.x). On both a standing
# agent of mkrun waits, so `mkrun launch --agent standing -H g1,g2` works at once. All files are in memory.
#
# What g1 writes into /dev/vport0p3 goes to the monitor of g2's emulator: `set_link n1 off` pulls the cable of eth1 and
# rxe0, `quit` kills the machine. A g2 that has ended is booted again.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root kernels=$root/.tools/rxe
readonly MODULES="virtio_pci virtio_net virtio_console crc32_generic crc32c_generic sch_netem ib_uverbs rdma_rxe"
readonly PROGRAMS="dash ip tc rdma ib_write_bw ib_write_lat"

die() {
  printf 'rxe: %s\n' "$*" >&2
  exit 99
}

# newest: the folder of the newest unpacked kernel, nothing if there is none.
newest() { { find "$kernels" -mindepth 1 -maxdepth 1 -name 'linux-image-*' 2>/dev/null || :; } | sort -V | tail -n 1; }

# kernel: fetches and unpacks a kernel that has rdma_rxe, unless there is one. The package that linux-image-amd64 names
# moves with security updates.
kernel() {
  local package part
  [ -z "$(newest)" ] || return 0
  mkdir -p "$kernels"
  [ "$(id -u)" -ne 0 ] || apt-get update -qq || : # an old index names packages that are gone
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }') || :
  [ -n "$package" ] || die "apt knows no linux-image-amd64: run apt-get update"
  part=$(mktemp -d "$kernels/.part.XXXXXX")
  (cd "$part" && apt-get download -qq "$package" && dpkg-deb --fsys-tarfile ./*.deb |
    tar -x --wildcards "./boot/vmlinuz-*" "./lib/modules/*/modules.*" "./lib/modules/*/kernel/crypto/*" \
      "./lib/modules/*/kernel/arch/*" "./lib/modules/*/kernel/lib/*" "./lib/modules/*/kernel/net/*" \
      "./lib/modules/*/kernel/drivers/infiniband/*" "./lib/modules/*/kernel/drivers/net/*" \
      "./lib/modules/*/kernel/drivers/virtio/*" "./lib/modules/*/kernel/drivers/char/*") >"$kernels/log" 2>&1 ||
    { rm -rf "$part" && die "fetching $package failed: $(tail -n 3 "$kernels/log")"; }
  rm -f "$part"/*.deb
  depmod -b "$part" "${package#linux-image-}"
  mv "$part" "$kernels/$package"
}

# add_program ROOT FILE: copies a program and the shared libraries that it names.
add_program() {
  local library
  cp -L --remove-destination -- "$2" "$1/bin/" # not into busybox, where that has an applet of this name
  { ldd "$2" 2>/dev/null || true; } | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' |
    while read -r library; do
      mkdir -p "$1${library%/*}"
      cp -Lu "$library" "$1$library"
    done
}

# fill ROOT KERNEL PROGRAM...: makes the machines' root.
fill() {
  local root_of=$1 kernel=$2 version file name
  shift 2
  version=${kernel##*/linux-image-}
  mkdir -p "$root_of"/{bin,proc,sys,dev,tmp,run,root,etc/libibverbs.d,lib64}
  name=$(command -v busybox) || die "busybox is missing: scripts/setup.sh rxe"
  cp "$name" "$root_of/bin/busybox"
  for name in $("$root_of/bin/busybox" --list); do
    case $name in busybox | sh | ip | tc) ;; *) ln -s busybox "$root_of/bin/$name" ;; esac
  done
  # busybox's own shell would take its applets before the programs of the same names.
  ln -s dash "$root_of/bin/sh"
  for name in $PROGRAMS; do
    file=$(command -v "$name") || die "$name is missing: scripts/setup.sh rxe"
    add_program "$root_of" "$file"
  done
  for file in "$@"; do add_program "$root_of" "$file"; done
  # What is opened at run time: the provider, and what pthread_exit loads.
  for file in /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so /usr/lib/x86_64-linux-gnu/{libibverbs.so.1,libgcc_s.so.1}; do
    [ -e "$file" ] || die "$file is missing: scripts/setup.sh rxe"
    add_program "$root_of" "$file"
    mkdir -p "$root_of${file%/*}"
    mv "$root_of/bin/${file##*/}" "$root_of$file"
  done
  cp /etc/libibverbs.d/rxe.driver "$root_of/etc/libibverbs.d/"
  printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root_of/etc/passwd"
  printf 'root:x:0:\n' >"$root_of/etc/group"
  printf '127.0.0.1 localhost\n10.9.0.1 g1\n10.9.0.2 g2\n' >"$root_of/etc/hosts"
  mkdir -p "$root_of/root/.config/mkrun"
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$root_of/root/.config/mkrun/secret")
  # In load order. rdma_rxe wants a crc32 driver that its dependencies do not name.
  for name in $MODULES; do
    modprobe -d "$kernel" -S "$version" --show-depends "$name" || die "the kernel has no module $name"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$root_of/modules"
  while read -r file; do
    cp "$file" "$root_of/lib64/${file##*/}"
  done <"$root_of/modules"
  sed -i 's,.*/,/lib64/,' "$root_of/modules"
  cp "$root/scripts/rxe-init.sh" "$root_of/init"
}

# boot DIR NUMBER: becomes the emulator of a machine. Unix sockets are its cables, g1 holds the sockets. The emulator
# dies with this script, whatever ends it.
boot() {
  local dir=$1 number=$2 n side=on args=()
  if [ "$number" = 1 ]; then
    args+=(-chardev "socket,id=monitor,path=$dir/monitor,server=on,wait=off" -device "virtserialport,chardev=monitor,nr=3")
  else
    side=off
    args+=(-chardev "socket,id=monitor,path=$dir/monitor" -mon "chardev=monitor,mode=readline")
  fi
  for n in 0 1 2; do
    args+=(-netdev "stream,id=n$n,server=$side,addr.type=unix,addr.path=$dir/net$n"
      -device "virtio-net-pci,netdev=n$n,mac=52:54:00:00:0$n:0$number")
  done
  # A machine may have to wait for a processor of the host while it boots. It must not take its timer for broken then
  # (no_timer_check), nor measure a wrong rate of the time stamp counter: its clock would run several times too fast.
  exec setpriv --pdeathsig KILL \
    qemu-system-x86_64 -accel tcg -cpu max -M q35 -m 768 -smp 1 -nodefaults -no-user-config -no-reboot -display none \
    -kernel "$dir/vmlinuz" -initrd "$dir/initrd" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off clocksource=hpet no_timer_check nowatchdog number=$number" \
    -chardev "file,id=console,path=$dir/console$number,append=on" -serial chardev:console -device virtio-serial-pci \
    -chardev "file,id=out,path=$dir/out$number" -device virtserialport,chardev=out,nr=1 \
    -chardev "file,id=status,path=$dir/status$number" -device virtserialport,chardev=status,nr=2 \
    "${args[@]}" </dev/null 2>>"$dir/log$number"
}

# listening DIR: true once g1's emulator takes connections at all its sockets. A socket has its name before it does.
listening() { [ "$(awk -v dir="$1/" '$4 == "00010000" && index($8, dir) == 1' /proc/net/unix | wc -l)" -eq 4 ]; }

# end_all: ends what `run` has started and waits for it; what bash says of killed jobs it says to nobody.
end_all() {
  kill -KILL "${pids[@]}" || :
  wait "${pids[@]}" || :
} 2>/dev/null

run() {
  local seconds=150 programs=() dir kernel status end first second output file
  while getopts s:p: option; do
    case $option in
      s) seconds=$OPTARG ;;
      p) programs+=("$(realpath -e -- "$OPTARG")") || die "no program goes into the machines" ;;
      *) exit 98 ;;
    esac
  done
  shift $((OPTIND - 1))
  [ $# -ge 1 ] || die "no command"
  command -v qemu-system-x86_64 >/dev/null || die "qemu-system-x86_64 is missing: scripts/setup.sh rxe"
  kernel=$(newest)
  [ -n "$kernel" ] || die "there is no kernel: scripts/setup.sh rxe"
  dir=$(mktemp -d /tmp/mkrun-rxe-XXXXXX) # paths of sockets are short
  pids=()
  # shellcheck disable=SC2064 # now
  trap "end_all; rm -rf '$dir'" EXIT
  trap 'exit 99' INT TERM HUP
  for file in "$root/bin/mkrun" "$root/build/libmknet.so"; do [ -e "$file" ] || die "$file is missing: make build net"; done
  programs+=("$root/bin/mkrun" "$root/build/libmknet.so" "$(realpath -e -- "$(command -v -- "$1")")") || die "there is no program $1"
  fill "$dir/root" "$kernel" "${programs[@]}"
  printf '%q ' "/bin/${1##*/}" "${@:2}" >"$dir/root/command"
  (cd "$dir/root" && find . | cpio -o -H newc -R 0:0 --quiet) >"$dir/initrd"
  rm -rf "$dir/root"
  ln -s "$kernel"/boot/vmlinuz-* "$dir/vmlinuz"

  mkfifo "$dir/out1"
  cat "$dir/out1" &
  output=$!
  pids+=("$output")
  boot "$dir" 1 &
  first=$!
  pids+=("$first")
  end=$((SECONDS + seconds))
  until listening "$dir"; do
    if [ $SECONDS -ge $end ] || ! kill -0 "$first" 2>/dev/null; then
      die "the emulator did not start: $(cat "$dir/log1")"
    fi
    sleep 0.05
  done
  boot "$dir" 2 &
  second=$!
  pids+=("$second")
  # g1 ends when the command has.
  while kill -0 "$first" 2>/dev/null; do
    if ! kill -0 "$second" 2>/dev/null; then
      wait "$second" || silent "g2 ended"
      boot "$dir" 2 &
      second=$!
      pids+=("$second")
    fi
    [ $SECONDS -lt $end ] || silent "$seconds s are over"
    sleep 0.1
  done
  status=$(cat "$dir/status1")
  case $status in '' | *[!0-9]*) silent "g1 ended" ;; esac
  wait "$output" # all of it
  exit "$status"
}

# silent REASON: ends without a status of the command.
silent() {
  tail -n 15 "$dir"/console* "$dir"/log* >&2
  die "no status: $1"
}

case ${1:-} in
  run) shift && run "$@" ;;
  kernel) kernel ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 98
    ;;
esac
