#!/bin/sh
# dsv3 tokenize --chat against what transformers renders, for prove. See templates.py.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/templates.py" "$@"
