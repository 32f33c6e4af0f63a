#!/bin/sh
# On g1 of rxe.sh: perftest and net-bench over rxe0, in turns. Both with a time-out of 4.096 us x 2^18: with perftest's
# own of 67 ms messages are sent again for nothing, since the emulated processors are slow to acknowledge.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
if [ ! -e /dev/vport0p1 ] || [ ! -f /modules ]; then
  echo "bench-rxe: this is not g1 of rxe.sh: scripts/rxe.sh run -p build/net-bench scripts/bench-rxe.sh starts it there" >&2
  exit 2
fi
ROUNDS=3

# perftest PROGRAM SIZE COUNT COLUMN UNIT: runs it from g2 to g1 and prints a column of its result, times a unit (its MB
# are 2^20).
perftest() {
  timeout 120 "$1" -d rxe0 -u 18 -F -s "$2" -n "$3" >/dev/null 2>&1 &
  # It listens at port 18515; one that ended at once never will, and its client says so.
  until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 .* 0A ' || ! kill -0 $!; do sleep 0.1; done
  echo "$1 -d rxe0 -u 18 -F -s $2 -n $3 10.9.1.1 2>&1; exit" | nc g2 23 | awk -v size="$2" -v column="$4" -v unit="$5" '$1 == size { print $column * unit }'
  wait
}

round=0
while [ $round -lt $ROUNDS ]; do
  round=$((round + 1))
  echo "perftest latency $(perftest ib_write_lat 8 300 5 1)"
  for size in 4096:300 65536:60 1048576:8; do
    echo "perftest $((${size%:*} / 1024)) $(perftest ib_write_bw "${size%:*}" "${size#*:}" 4 1.048576)"
  done
  mkrun launch --agent standing -H g1,g2 --iface eth0 --silence 1m --tag none -- net-bench -r 1 -t 500 ibverbs:rxe0 |
    awk '/latency/ { print "mknet latency", $6 } / KiB / { print "mknet", $1, $3 } /messages/ { print "mknet rate", $6 }'
done >/results
awk '
  function median(list,    n, a, i, j, t) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return a[int((n + 1) / 2)]
  }
  { values[$1, $2] = values[$1, $2] " " $3; if (!seen[$2]++) order[++rows] = $2 }
  END {
    printf "%-28s %12s %12s %8s   each round\n", "ibverbs on Soft-RoCE, medians", "mknet", "perftest", "ratio"
    for (i = 1; i <= rows; i++) {
      name = order[i]
      ours = median(values["mknet", name]); theirs = median(values["perftest", name])
      unit = name == "latency" ? "us" : name == "rate" ? "1000/s" : "KiB, MB/s"
      printf "%-28s %12s %12s %8s  %s |%s\n", name " " unit, ours, theirs, (theirs > 0 ? sprintf("%.2f", ours / theirs) : "-"), values["mknet", name], values["perftest", name]
    }
  }' /results
