# Runs in a pod: sh -c TEXT sh FIELDS MORE_FIELDS. Prints the name of the program that the image has, then its
# answer or its error message. An old driver does not know MORE_FIELDS. neuron-monitor never ends: its first report
# is used.
ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits; }
if command -v nvidia-smi >/dev/null; then
  echo nvidia
  if answer=$(ask "$1,$2"); then echo "$answer"; else ask "$1" 2>&1 || :; fi
elif command -v neuron-monitor >/dev/null; then
  echo neuron
  timeout 20 neuron-monitor | head -n 1
else
  echo none
fi
