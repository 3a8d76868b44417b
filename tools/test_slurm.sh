#!/bin/sh
# A sweep of 200 cells over a job array of a real Slurm cluster on this host, one of whose two nodes dies half way: everything is
# measured, nothing twice, and the merged run is whole. Ends with "N passed, M failed"; skips with a line where there is no Slurm.
set -eu
cd "$(dirname "$0")/.."
for program in munged slurmctld slurmd sbatch; do
  command -v $program >/dev/null || PATH=$PATH:/usr/sbin:/sbin
  command -v $program >/dev/null || { echo "slurm: skipped: no $program (apt-get install slurm-wlm munge)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo 'slurm: skipped: its daemons need root'; exit 0; }

folder=$(mktemp -d)
trap 'tools/slurm_cluster.sh stop "$folder/slurm" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
tools/slurm_cluster.sh start "$folder/slurm"
SLURM_CONF=$folder/slurm/slurm.conf
export SLURM_CONF

PARTS=10 CELLS=200
FEWHEAD_THREADS=1 FEWHEAD_DEVICE=cpu
export FEWHEAD_THREADS FEWHEAD_DEVICE
cells='--s-q 1:50:1 --heads 1,2,4,8 --s-kv 64 --topk 16 --pattern uniform --layout contiguous --min-samples 1 --seconds 0'
submit() {
  # shellcheck disable=SC2086 # a list of words
  sbatch --parsable --array=0-$((PARTS - 1)) --output="$folder/task-%a.log" experiments/cluster/sweep.sbatch "$folder/out" $cells
}
lines() { cat "$folder"/out/*/2*/records.jsonl 2>/dev/null | wc -l; }
paths=$(./fewhead run experiments/gate_sweep.lua --s-q 1 --s-kv 64 --topk 16 --pattern uniform --seconds 0 --out "$folder/one" >/dev/null; wc -l <"$folder/one/latest/records.jsonl")

job=$(submit)
tries=0
while [ "$(lines)" -lt $((CELLS * paths / 2)) ] && [ $tries -lt 1200 ]; do sleep 0.25; tries=$((tries + 1)); done
echo "half way, $(lines) records: node 1 dies"
tools/slurm_cluster.sh kill-node "$folder/slurm" 1
tries=0
while squeue -h -j "$job" 2>/dev/null | grep -q . && [ $tries -lt 600 ]; do
  sleep 1
  tries=$((tries + 1))
  # Slurm starts a requeued task two minutes later; here there is nothing to wait for.
  for task in $(squeue -h -r -j "$job" -t PENDING -o %i 2>/dev/null); do scontrol update "jobid=$task" StartTime=now 2>/dev/null || true; done
done
if ! ./fewhead merge --out "$folder/merged" "$folder"/out/shard-* >"$folder/merge.log" 2>&1; then
  cat "$folder/merge.log"
  echo 'not whole yet: the same command again'
  job=$(submit)
  while squeue -h -j "$job" 2>/dev/null | grep -q . && [ $tries -lt 600 ]; do sleep 1; tries=$((tries + 1)); done
fi

passed=0 failed=0
check() { # NAME FOUND WANTED
  if [ "$2" = "$3" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "slurm: $1: got $2, wanted $3"
  fi
}
rm -rf "$folder/merged"
./fewhead merge --out "$folder/merged" "$folder"/out/shard-* || true
merged=$folder/merged/latest/records.jsonl
check 'merged records' "$(wc -l <"$merged")" $((CELLS * paths))
check 'merged cells' "$(grep -o '"id":"[0-9a-f]\{16\}"' "$merged" 2>/dev/null | sort -u | wc -l)" $CELLS
check 'records of all parts' "$(lines)" $((CELLS * paths))
check 'folders of runs' "$(find "$folder"/out -mindepth 2 -maxdepth 2 -name '2*' | wc -l)" $PARTS
check 'records that passed' "$(grep -c '"status":"pass"' "$merged" 2>/dev/null)" $((CELLS * paths))
check 'a node died' "$(sinfo -h -N -o %T | grep -c down)" 1
[ $failed = 0 ] || tail -n 5 "$folder"/task-*.log "$folder"/slurm/*.log
echo "$passed passed, $failed failed"
[ $failed = 0 ]
