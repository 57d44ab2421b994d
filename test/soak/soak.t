#!/bin/bash
#
# soak.t
#	The soak (soak.sh) with the small random model: seconds and sessions from SOAK_SECONDS (20) and SOAK_SESSIONS (100), another
#	model from SOAK_MODEL. The cache is small, so that the requests asked alone before have filled it: memory that grows after
#	that is lost. On a slow machine a large one would still be filling.
set -u
cd "$(dirname "$0")/../.." || exit 1
sessions=${SOAK_SESSIONS:-100}
exec test/with_server.sh -m "${SOAK_MODEL:-build/tiny-model}" -c "max_connections = $((sessions + 20))" -c "dsv3.kv_cache_size = 128MB" \
	test/soak/soak.sh "${SOAK_SECONDS:-20}" "$sessions"
