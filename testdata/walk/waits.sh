# Each way to call a function, by the name of the first argument, waits in one after it has told of what runs: as FUNCNAME,
# BASH_SOURCE and BASH_LINENO have it, with the line of the caller's that is right for it. What the second one names
# never comes.
never=$2

waits() {
  local i calls= line=$1
  for ((i = 1; i < ${#FUNCNAME[@]}; i++)); do
    calls+=",\"${FUNCNAME[i]} ${BASH_SOURCE[i]} ${line:-${BASH_LINENO[i - 1]}}\"" line=
  done
  printf '{"TID":%d,"Calls":["waits %s %d"%s]}\n' "$BASHPID" "${BASH_SOURCE[0]}" $((LINENO + 1)) "$calls"
  read -r <"$never"
}

recurses() {
  if (($1 > 0)); then
    recurses $(($1 - 1))
  else
    waits
  fi
}

way_recursion() {
  recurses 5
}

way_loops() {
  for ((j = 0; j < 1; j++)); do
    for i in 1 2; do
      while true; do
        until false; do
          case $i in
            1) ;;
            *)
              {
                true &&
                  waits
              }
              ;;
          esac
          break 2
        done
      done
    done
  done
}

way_source() {
  source "${BASH_SOURCE%/*}/waitslib.sh"
  from_library waits
}

way_sourcing() {
  local here=1
  . "${BASH_SOURCE%/*}/waitslib.sh"
}

way_subshell() {
  (
    waits
  )
}

in_subshell() (
  : first
  waits
)

way_subshell_body() {
  in_subshell
}

way_pipeline() {
  exec 3>&1
  : | waits >&3 | :
}

way_last_of_pipeline() {
  : |
    while true; do
      waits
    done
}

way_substitution() {
  local x
  exec 3>&1
  x=$(waits >&3)
}

way_process() {
  exec 3>&1
  : <(waits >&3)
  wait
}

way_background() {
  waits &
  wait
}

way_eval() {
  eval 'true; waits'
}

way_command() {
  command eval 'recurses 1'
}

way_trap() {
  trap 'recurses 0' USR1
  kill -USR1 $BASHPID
}

way_exit() {
  trap 'waits 0' EXIT
  exit
}

way_return() {
  trap 'waits 0' RETURN
  return
}

way_error() {
  trap 'recurses 1' ERR
  set -E
  false
  true
}

way_redefined() {
  way_redefined() { :; }
  waits
}

way_unset() {
  unset -f way_unset
  waits
}

way_completion() {
  compgen -F completes x 2>/dev/null
}

completes() {
  waits
}

way_callback() {
  mapfile -t -c 1 -C "waits $((LINENO)) #" lines <<<'a'
}

way_time() {
  time ! waits
}

way_environment() {
  X=1 Y=2 recurses 2
}

way_test() {
  [[ $(exec 4>&1; waits >&3) ]]
} 3>&1

way_arithmetic() {
  if ((1 + $(waits >&3))); then :; fi
} 3>&1

way_here() {
  read -r x <<end
a
$(waits >&3)
end
} 3>&1

way_local() {
  local x=$(waits >&3)
} 3>&1

way_inline() {
  if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 503)); then
    eval 'x=${ recurses 1 >&3; }'
  fi
  waits
} 3>&1

way_coproc() {
  exec 3>&1
  coproc {
    waits >&3
  }
  wait
}

"way_$1"
