#!/bin/sh
# The first process of the virtual machines of rxe.sh, and of nothing else: it mounts over /proc and /dev and ends with the
# machine switched off. /command is run on g1.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
if [ $$ != 1 ] || [ ! -f /modules ]; then
  echo "rxe-init: this is the first process of the virtual machines that rxe.sh boots, and would switch this one off" >&2
  exit 2
fi
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
while read -r module; do insmod "$module" || echo "insmod $module failed"; done </modules
number=$(sed 's/.*number=\([0-9]\).*/\1/' /proc/cmdline)
hostname "g$number"
ip link set lo up
other=$((3 - number))
for n in 0 1 2; do
  ip addr add "10.9.$n.$number/24" dev "eth$n"
  ip link set "eth$n" up
  # Known for good: on a busy host an answer to ARP may take longer than the kernel waits.
  ip neigh replace "10.9.$n.$other" lladdr "52:54:00:00:0$n:0$other" dev "eth$n" nud permanent
done
for n in 0 1; do
  rdma link add "rxe$n" type rxe netdev "eth$((n + 1))" || echo "rxe$n was not made"
done
# Whoever runs tests does things to the machines by this shell; only the other machine can reach it.
nc -ll -p 23 -e /bin/sh &
mkrun agent --listen >/agent.log 2>&1 &
[ "$number" = 1 ] || exec sleep 1000000

# Whoever booted the machines bounds this.
until nc -w 1 g1 7611 </dev/null && nc -w 1 g2 7611 </dev/null; do sleep 0.2; done 2>/dev/null
sh /command >/dev/vport0p1 2>&1
echo $? >/dev/vport0p2
poweroff -f
