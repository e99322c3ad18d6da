#!/bin/bash
set -e
source /env.sh
torchrun train.py "$@"
