#!/bin/sh
# A Slurm cluster on this host alone: one controller and two node daemons, everything they write in one folder. For tests.
#
#   tools/slurm_cluster.sh start FOLDER     then: export SLURM_CONF=FOLDER/slurm.conf, and sbatch, squeue .. work
#   tools/slurm_cluster.sh kill-node FOLDER 1     what a node that dies looks like: its daemon and its jobs' processes are killed
#   tools/slurm_cluster.sh stop FOLDER
#
# Needs Debian's slurm-wlm and munge, and root. The daemons listen on this host's own name only.
set -eu
verb=${1:-} folder=${2:-}
[ -n "$folder" ] || { echo 'usage: slurm_cluster.sh start|stop|kill-node FOLDER [NODE]' >&2; exit 2; }

# Ports from a process number, so that two clusters on one host are apart.
port() { echo $((20000 + ($1 % 1000) * 10 + $2)); }

write_conf() {
  host=$(hostname)
  base=$$
  cat >"$folder/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(port $base 0)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
ReturnToService=2
SlurmdTimeout=5
InactiveLimit=0
KillWait=1
MinJobAge=3600
MaxArraySize=1001
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool.%n
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/slurmd.%n.log
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(port $base 1) CPUs=1 State=UNKNOWN
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(port $base 2) CPUs=1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
}

# Ends a daemon by the process number it wrote, and waits until it is gone.
end() {
  [ -f "$1" ] || return 0
  read -r pid <"$1" || return 0
  kill "-${2:-TERM}" "$pid" 2>/dev/null || return 0
  for _ in $(seq 50); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
}

case $verb in
start)
  for program in munged slurmctld slurmd; do
    command -v $program >/dev/null || { echo "slurm_cluster: no $program: apt-get install slurm-wlm munge" >&2; exit 1; }
  done
  mkdir -p "$folder/state" "$folder/spool.node1" "$folder/spool.node2"
  folder=$(cd "$folder" && pwd)
  chmod 700 "$folder"
  dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2>/dev/null
  chmod 400 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
  write_conf
  SLURM_CONF=$folder/slurm.conf
  export SLURM_CONF
  slurmctld -f "$SLURM_CONF"
  slurmd -N node1 -f "$SLURM_CONF"
  slurmd -N node2 -f "$SLURM_CONF"
  for _ in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && exit 0
    sleep 0.2
  done
  echo "slurm_cluster: the nodes are not idle after 20 s:" >&2
  sinfo >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
  ;;
kill-node)
  # The daemon, its job managers (slurmstepd) and the jobs' processes die at once, as they do with a node.
  read -r daemon <"$folder/slurmd.node$3.pid"
  kill -KILL "$daemon" 2>/dev/null || true
  for process in /proc/[0-9]*; do
    job=${process#/proc/}
    found=$({ tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -cxE "SLURMD_NODENAME=node$3|SLURM_CONF=$folder/slurm.conf" || true)
    [ "$found" = 2 ] || continue
    parent=$(awk '/^PPid:/ { print $2 }' "$process/status" 2>/dev/null) || continue
    case $(cat "/proc/$parent/comm" 2>/dev/null) in slurmstepd) kill -KILL "$parent" 2>/dev/null || true ;; esac
    kill -KILL "$job" 2>/dev/null || true
  done
  ;;
stop)
  SLURM_CONF=$folder/slurm.conf
  export SLURM_CONF
  scancel -u root 2>/dev/null || true
  end "$folder/slurmd.node1.pid"
  end "$folder/slurmd.node2.pid"
  end "$folder/slurmctld.pid"
  end "$folder/munged.pid"
  ;;
*)
  echo "slurm_cluster: $verb: wanted start, stop or kill-node" >&2
  exit 2
  ;;
esac
