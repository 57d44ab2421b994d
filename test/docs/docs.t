#!/bin/sh
# The pages against a server with the small random model: docs.py says what is compared.
top=$(cd "$(dirname "$0")/../.." && pwd)
exec "$top/test/with_server.sh" -m "$top/build/tiny-model" "${PYTHON:-python3}" "$top/test/docs/docs.py"
