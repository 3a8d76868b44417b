#!/bin/sh
# Runs every C test and every spec and ends with the line "N passed, M failed". Specs tagged #gpu run where the library can open a
# CUDA device; elsewhere a line says how many were left out.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/tally.sh

build() { ${MAKE:-make} -s --no-print-directory "$@"; }
specs() { busted --output=plainTerminal "$@"; }

programs=$(build list-ctest)
# shellcheck disable=SC2086 # a list of words
build -k -j"$(nproc)" $programs
for program in $programs; do
  if build "$program"; then count "$program" "$program"; else check "$program is built" false; fi
done
[ -n "$programs" ] || check 'there are C tests' false

if ./fewhead info --device cuda >/dev/null 2>&1; then count specs specs
else
  count specs specs --exclude-tags=gpu
  left_out=$(specs --list --tags=gpu 2>/dev/null | grep -c '_spec\.lua:')
  [ "$left_out" -eq 0 ] || echo "$left_out not run: need a CUDA device"
fi
seconds
summary
