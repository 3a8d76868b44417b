#!/bin/sh
# Makes sure that this machine has what a target needs: tools/setup.sh run|test|repl|lint|docs|bench|slurm ...
#
# Each need is tested by using it, not by asking a package manager, so it does not matter where it came from. Missing packages are
# installed with apt-get if nobody has to be asked: as root, or with a sudo that wants no password. Otherwise the exact command is
# printed. Exit status 0: everything is there. 1: something is missing.
set -u

have() { command -v "$1" >/dev/null 2>&1; }
have_daemon() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1; }
have_module() { luajit -e "require '$1'" >/dev/null 2>&1; } # a Lua module that LuaJIT can load
have_header() { echo "#include <$1>" | cc -E - >/dev/null 2>&1; }
have_python() { python3 -c 'import ctypes, multiprocessing' >/dev/null 2>&1; }
have_library() { luajit -e "require('ffi').load('$1')" >/dev/null 2>&1; }

names=''
packages=''

# need NAME PACKAGE TEST [ARGUMENT]: NAME is what a person would look for, PACKAGE what Debian and Ubuntu call it.
need() {
  name=$1 package=$2
  shift 2
  "$@" && return
  case " $packages " in *" $package "*) return ;; esac # two targets may share a need
  names="$names${names:+, }$name"
  packages="$packages${packages:+ }$package"
}

needs_of() {
  case $1 in
    run)
      need 'a C compiler (cc)' gcc have cc
      need 'the C library headers' libc6-dev have_header stdio.h
      need luajit luajit have luajit
      need 'the Lua module cjson' lua-cjson have_module cjson
      need 'the Lua module luv' lua-luv have_module luv
      need 'the xxHash library' libxxhash0 have_library libxxhash.so.0
      ;;
    docs)
      need ldoc lua-ldoc have ldoc
      need 'the Lua module discount' lua-discount have_module discount
      ;;
    test)
      needs_of run
      needs_of docs
      need busted lua-busted have busted
      need pkg-config pkg-config have pkg-config
      need 'python3 with ctypes' python3 have_python
      need 'the readline library' libreadline8 have_library libreadline.so.8
      ;;
    repl)
      needs_of run
      need 'the readline library' libreadline8 have_library libreadline.so.8
      ;;
    lint)
      need luacheck lua-check have luacheck
      need cppcheck cppcheck have cppcheck
      ;;
    bench)
      needs_of run
      need OpenBLAS libopenblas0-pthread have_library libopenblas.so.0
      ;;
    slurm)
      need slurmctld slurm-wlm have_daemon slurmctld
      need munged munge have_daemon munged
      ;;
    *)
      echo "setup: unknown target \"$1\"; known: run, test, repl, lint, docs, bench, slurm" >&2
      exit 1
      ;;
  esac
}

for target in "$@"; do needs_of "$target"; done
[ -n "$packages" ] || exit 0

if ! have apt-get; then
  echo "fewhead: missing on this machine: $names" >&2
  echo 'fewhead: it has no apt-get; install these with its own package manager and run make again' >&2
  exit 1
fi

root='' # what makes a command run as root
if [ "$(id -u)" -ne 0 ]; then
  if have sudo && sudo -n true 2>/dev/null; then
    root='sudo -n'
  else
    echo "fewhead: missing on this machine: $names" >&2
    if have sudo; then root='sudo '; how='run'; else how='run as root'; fi
    echo "fewhead: to install it, $how:" >&2
    echo "  ${root}apt-get update && ${root}apt-get install -y --no-install-recommends $packages" >&2
    exit 1
  fi
fi

# How long to wait for another program that installs packages (a machine's first minutes belong to its own updates), and how often to
# look, in seconds.
wait_limit=600
wait_step=5

# Runs an apt-get command in English and, where another program holds apt's or dpkg's lock, runs it again until that program is done.
apt() {
  waited=0
  while :; do
    errors=$($root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get "$@" 2>&1 >&3 3>&- </dev/null) && apt_status=0 || apt_status=$?
    [ "$apt_status" -ne 0 ] || break
    case $errors in
      *'Could not get lock'* | *'Unable to acquire the dpkg frontend lock'* | *'Unable to lock'*) ;;
      *) break ;;
    esac
    if [ "$waited" -ge "$wait_limit" ]; then
      echo "fewhead: another program is still installing packages after $wait_limit s; run this again when it is done" >&2
      return 1
    fi
    [ "$waited" -ne 0 ] || echo "fewhead: another program is installing packages; waiting for it, $wait_limit s at most" >&2
    sleep "$wait_step"
    waited=$((waited + wait_step))
  done
  [ -z "$errors" ] || printf '%s\n' "$errors" >&2
  return "$apt_status"
} 3>&1

install() {
  # shellcheck disable=SC2086 # a list of words
  apt install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $packages
}
update() { apt update -qq; }

echo "fewhead: installing $packages"
# Fresh package lists are fetched if there are none, or if an install with the present ones fails.
{ ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 && install; } || { update && install; } || {
  echo "fewhead: apt-get could not install: $packages" >&2
  exit 1
}

# A package may be installed and its program still not found. Then stop here, with a message that names it.
names=''
packages=''
for target in "$@"; do needs_of "$target"; done
[ -z "$packages" ] || {
  echo "fewhead: installed, yet not found: $names" >&2
  exit 1
}
