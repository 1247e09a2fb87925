#!/bin/sh
# A chain of three execs that lives about 100 ms: sh, then bash, then
# awk, each with some work. Usage: execchain.sh [STEP]
case "${1:-1}" in
1) i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exec bash "$0" 2 ;;
2) i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done
   exec awk 'BEGIN { for (i = 0; i < 600000; i++) s += i * i; exit s == 42 }' ;;
esac
