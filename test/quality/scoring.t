#!/bin/sh
# The extraction set and its scoring, for prove. See scoring.py.
exec "${PYTHON:-python3}" "$(dirname "$0")/scoring.py" "$@"
