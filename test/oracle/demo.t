#!/bin/sh
# The engine on the demo model against the original, for prove. See demo.py.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/demo.py" "$@"
