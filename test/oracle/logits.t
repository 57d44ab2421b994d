#!/bin/sh
# The engine's logits against the oracle's, for prove. See compare.py.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/compare.py" "$@"
