#!/bin/sh
# The same comparison for the other ways through the engine: expanded attention, scalar kernels, weights widened in memory, and
# steps of a few tokens.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/compare.py" --variant=--expanded --variant='--isa ref' \
	--variant='--weights f32' --variant='--chunk 7' "$@"
