#!/bin/sh
# Starts processes that live 20 to 50 ms each, one after the other.
# Usage: shortlived.sh COUNT
n=0
while [ $n -lt "${1:-20}" ]; do
  n=$((n+1))
  sh -c 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done'
done
