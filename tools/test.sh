#!/bin/sh
# Runs every C test and every spec, all of them whatever fails, and ends with the line "N passed, M failed".
# Exit 0 when something passed and nothing failed. Specs tagged #gpu run where the library can open a CUDA device; elsewhere a line
# says how many were left out.
set -u
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp) || exit 1
trap 'rm -f "$log" "$log.status"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 failed=0

# run NAME COMMAND..: shows what the command prints and adds up what it counted. A run that counts nothing has failed, and so has one
# whose exit status says so while its counts do not.
run() {
  name=$1
  shift
  echo "== $name"
  { "$@" 2>&1 </dev/null; echo $? >"$log.status"; } | tee "$log"
  # Both forms: "3 passed, 0 failed" of the C tests and "3 successes / 0 failures / 0 errors / 0 pending : .." of busted.
  # shellcheck disable=SC2046 # the two numbers become two words
  set -- $(awk -v status="$(cat "$log.status")" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
    /^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? \/ [0-9]+ pending/ { passed += $1; failed += $4 + $7 }
    END {
      if (failed == 0 && (status != 0 || passed == 0)) failed = 1
      print passed + 0, failed + 0
    }' "$log")
  passed=$((passed + $1)) failed=$((failed + $2))
  [ "$2" -eq 0 ] || echo "== $name: $2 failed (exit status $(cat "$log.status"))"
}

specs() { busted --lua=luajit --lpath='lua/?.lua;lua/?/init.lua' --output=plainTerminal "$@" spec; }

for program in $(${MAKE:-make} -s --no-print-directory list-ctest); do
  if ${MAKE:-make} -s --no-print-directory "$program"; then run "$program" "$program"
  else
    echo "== $program does not build"
    failed=$((failed + 1))
  fi
done

left_out=0
if ./fewhead info --device cuda >/dev/null 2>&1; then run 'specs' specs
else
  run 'specs' specs --exclude-tags=gpu
  left_out=$(specs --list --tags=gpu 2>/dev/null | grep -c "_spec.lua:")
fi
[ "$left_out" -eq 0 ] || echo "$left_out not run: need a CUDA device"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
