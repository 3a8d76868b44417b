# shellcheck shell=sh
# Sourced by what runs several steps and must say how many passed: tools/test.sh and .ci/run.
#
#   count NAME COMMAND..   a step that counts for itself; its last line of counts is added up
#   check NAME COMMAND..   a step that passes or fails as a whole
#   summary                the closing line, "N passed, M failed"; fails when something failed or nothing ran
#
# Each shows what its command prints, as it comes. No step ends the script: what follows a failure runs and is counted.
passed=0 failed=0
tally_log=$(mktemp) || exit 1
trap 'rm -f "$tally_log" "$tally_log.status"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command, shows and keeps what it prints; its exit status in $status.
shown() {
  { "$@" 2>&1 </dev/null; echo $? >"$tally_log.status"; } | tee "$tally_log"
  status=$(cat "$tally_log.status")
}

add() { # NAME PASSED FAILED
  passed=$((passed + $2)) failed=$((failed + $3))
  [ "$3" -eq 0 ] || echo "== $1: $3 failed (exit status $status)"
}

# A run that counts nothing has failed, and so has one whose exit status says so while its counts do not. Both closing lines are
# read: "3 passed, 0 failed", and busted's "3 successes / 0 failures / 0 errors / 0 pending : ..".
count() {
  name=$1
  shift
  echo "== $name"
  shown "$@"
  # Not when another tally has said so already: its closing line comes later.
  awk '/^[0-9]+ success.* pending/ { pending = $10 } /^[0-9]+ passed, / { pending = 0 }
    END { if (pending) print pending " not run: the pending ones above say why" }' "$tally_log"
  # shellcheck disable=SC2046 # two numbers, two words
  add "$name" $(awk -v status="$status" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed = $1; failed = $3 }
    /^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? \/ [0-9]+ pending/ { passed = $1; failed = $4 + $7 }
    END { print passed + 0, failed == 0 && (status != 0 || passed == 0) ? 1 : failed + 0 }' "$tally_log")
}

check() {
  name=$1
  shift
  echo "== $name"
  shown "$@"
  if [ "$status" -eq 0 ]; then add "$name" 1 0; else add "$name" 0 1; fi
}

summary() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
