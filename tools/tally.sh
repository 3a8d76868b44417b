# shellcheck shell=sh
# Sourced by scripts that run several steps and must say how many passed: tools/test.sh and .ci/run.
#
#   count NAME COMMAND..   a step with tests of its own: the counts in the last count line of its output are added up
#   check NAME COMMAND..   a step that passes or fails as a whole
#   seconds                prints how long each step of 1 s or more took, and the total
#   summary                prints the closing line, "N passed, M failed"; fails when a step failed or nothing ran
#
# Each step shows the output of its command while it runs. A step that fails does not end the script: the next steps run too.
passed=0 failed=0
tally_log=$(mktemp) || exit 1
trap 'rm -f "$tally_log" "$tally_log.status" "$tally_log.seconds"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Seconds since the machine started: unlike the time of day, they never jump.
uptime_seconds() { cut -d. -f1 /proc/uptime; }
tally_start=$(uptime_seconds)

# Runs a command, shows its output and keeps a copy in $tally_log; its exit status goes to $status.
shown() { # NAME COMMAND..
  step=$1 step_start=$(uptime_seconds)
  shift
  echo "== $step"
  { "$@" 2>&1 </dev/null; echo $? >"$tally_log.status"; } | tee "$tally_log"
  status=$(cat "$tally_log.status")
  printf '%6d s  %s\n' $(($(uptime_seconds) - step_start)) "$step" >>"$tally_log.seconds"
}

add() { # NAME PASSED FAILED
  passed=$((passed + $2)) failed=$((failed + $3))
  [ "$3" -eq 0 ] || echo "== $1: $3 failed (exit status $status)"
}

# A step whose output holds no counts has failed. So has a step that counts no failure but ends with another exit status than 0.
# Two forms of count lines are known: "3 passed, 0 failed", and busted's "3 successes / 0 failures / 0 errors / 0 pending : ..".
count() {
  shown "$@"
  # Names the number of pending specs, unless a tally inside the step has named it: then "N passed" is the later line.
  awk '/^[0-9]+ success.* pending/ { pending = $10 } /^[0-9]+ passed, / { pending = 0 }
    END { if (pending) print pending " not run: the pending ones above say why" }' "$tally_log"
  # shellcheck disable=SC2046 # two numbers, two words
  add "$1" $(awk -v status="$status" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed = $1; failed = $3 }
    /^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? \/ [0-9]+ pending/ { passed = $1; failed = $4 + $7 }
    END { print passed + 0, failed == 0 && (status != 0 || passed == 0) ? 1 : failed + 0 }' "$tally_log")
}

check() {
  shown "$@"
  if [ "$status" -eq 0 ]; then add "$1" 1 0; else add "$1" 0 1; fi
}

seconds() {
  [ ! -f "$tally_log.seconds" ] || awk '$1 >= 1' "$tally_log.seconds"
  printf '%6d s  in all\n' $(($(uptime_seconds) - tally_start))
}

summary() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
