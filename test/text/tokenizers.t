#!/bin/sh
# dsv3 tokenize against the reference libraries, for prove. See compare.py.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/compare.py" "$@"
