# What scripts/gpu-8.sh and scripts/gpu-check.sh share; read by them.
# shellcheck shell=bash

# gpus_seen: how many GPUs programs see here. nvidia-smi also lists those that CUDA_VISIBLE_DEVICES hides.
gpus_seen() {
  local all shown
  all=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU ')
  shown=$all
  [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || shown=$(tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -cE '^ *([0-9]|GPU-|MIG-)')
  echo $((shown < all ? shown : all))
}

# bounded STDOUT STDERR SECONDS COMMAND...: runs a command for so long at most, with two files to append to. The shell waits beside
# it, so that a signal is acted on at once.
bounded() {
  timeout --kill-after=5 "${@:3}" >> "$1" 2>> "$2" < /dev/null &
  wait $!
}

# end_running: the command in progress ends, with all processes that it started.
end_running() {
  local pid
  for pid in $(jobs -pr); do
    kill "$pid" 2> /dev/null
    wait "$pid"
    kill -KILL -- "-$pid" 2> /dev/null # what has not heeded its TERM, or came when a timeout had only just started its command
  done
}
