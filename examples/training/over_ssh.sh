#!/usr/bin/env bash
# A training run over several machines by plain ssh, in a folder that all of them share:
#   PROCESSES=8 examples/training/over_ssh.sh "first second" CONFIG -o RUN [options of monolane launch]
# The first host must be reachable by its name from the others. Ctrl-C closes the connections; each
# launcher takes that as a request to stop, and the state is kept.
#   PROCESSES  on each machine; on GPUs one each (1)
#   PORT       on the first host (29500)
#   PYTHON     with monolane installed, on each machine (python3)
set -euo pipefail

read -ra hosts <<<"${1:?expected a list of hosts}"
shift
address=${hosts[0]}:${PORT:-29500}

children=()
stop() { kill "${children[@]}" 2>/dev/null || true; }
trap stop INT TERM HUP

for node in "${!hosts[@]}"; do
  # -tt: a closed connection reaches the launcher as SIGHUP. TERM=dumb: lines instead of a view.
  command=$(printf '%q ' env TERM=dumb "${PYTHON:-python3}" -m monolane launch "$@" \
    --nodes "${#hosts[@]}" --node "$node" --address "$address" --processes "${PROCESSES:-1}")
  ssh -tt "${hosts[node]}" "cd $(printf '%q' "$PWD") && exec $command" </dev/null &
  children+=("$!")
done

# A launcher that gives up must not leave the others waiting for it.
status=0
for _ in "${hosts[@]}"; do
  wait -n || {
    status=$?
    stop
  }
done
exit "$status"
