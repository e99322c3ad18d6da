#!/bin/bash
set -e
if [ "$1" = train ]; then
  shift
fi
exec torchrun train.py "$@"
