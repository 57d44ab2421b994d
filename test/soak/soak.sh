#!/bin/bash
#
# soak.sh [SECONDS [SESSIONS]]
#	Many sessions ask one engine for a long time; run it inside test/with_server.sh with the model to soak:
#
#		test/with_server.sh -m build/demo-model -c "max_connections = 120" test/soak/soak.sh 600 100
#
#	60 requests of mixed length and sampling are first answered alone, one by one. Then SESSIONS connections (100) ask them in
#	random order for SECONDS (600) and each answer must equal its answer alone; one request in eight is given a short
#	time limit. Every ten seconds the resident memory and the open descriptors of the supervisor and the engine are
#	noted. At the end no request may be left, all shared memory must be free again, and neither descriptors nor memory may have
#	grown between the first third and the end. Prints TAP.
set -u
seconds=${1:-600} sessions=${2:-100}
work=$(mktemp -d /tmp/dsv3-soak.XXXXXX) || exit 1
sampler=''
trap '[ -z "$sampler" ] || kill "$sampler" 2>/dev/null; rm -rf "$work"' EXIT
sql() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

test_no=0 failed=0
check()
{
	test_no=$((test_no + 1))
	if [ "$1" = 0 ]; then echo "ok $test_no - $2"; else
		echo "not ok $test_no - $2"
		failed=$((failed + 1))
	fi
}

sql >"$work/setup.out" 2>&1 <<'SQL' || { cat "$work/setup.out" >&2; exit 1; }
CREATE TABLE soak (
	id int PRIMARY KEY, prompt text, input text, max_tokens int, temperature float8, seed bigint, answer text);
INSERT INTO soak
SELECT i,
	(ARRAY['Summarise in one sentence: ', 'What is this text about? ', 'Translate to French: ', 'Give three key words for: '])[1 + i % 4],
	repeat('Parcel ' || i || ' was delivered to the wrong house and the customer asks for a refund. ', 1 + (i * 7) % 12),
	4 + (i * 5) % 28,
	CASE WHEN i % 3 = 0 THEN 0.8 ELSE 0 END, i
FROM generate_series(1, 60) AS i;
UPDATE soak SET answer = dsv3_generate(prompt, input, max_tokens => max_tokens, temperature => temperature, seed => seed);
CREATE TABLE soak_seen (equal int, different int, cancelled int);
CREATE PROCEDURE soak_ask(which int, hurried bool) LANGUAGE plpgsql AS $$
DECLARE
	s soak;
	got text;
BEGIN
	SELECT * INTO s FROM soak WHERE id = which;
	BEGIN
		got := dsv3_generate(s.prompt, s.input, max_tokens => s.max_tokens, temperature => s.temperature, seed => s.seed,
							 options => CASE WHEN hurried THEN jsonb_build_object('timeout_ms', 50 + which) ELSE '{}' END);
	EXCEPTION WHEN query_canceled THEN
		IF NOT hurried THEN RAISE; END IF;
		INSERT INTO soak_seen VALUES (0, 0, 1);
		RETURN;
	END;
	IF got IS DISTINCT FROM s.answer THEN
		RAISE WARNING 'request % differs: "%" alone, "%" now', which, s.answer, got;
		INSERT INTO soak_seen VALUES (0, 1, 0);
	ELSE
		INSERT INTO soak_seen VALUES (1, 0, 0);
	END IF;
END
$$;
SQL
cat >"$work/soak.pgb" <<'EOS'
\set id random(1, 60)
\set hurried random(1, 8)
CALL soak_ask(:id, :hurried = 1);
EOS

# Note resident kilobytes and descriptors of the engine and its parent, the supervisor.
note()
{
	local engine supervisor
	engine=$(sql -c "SELECT engine_pid FROM dsv3_health()")
	supervisor=$(ps -o ppid= -p "$engine" | tr -d ' ')
	for pid in "$engine" "$supervisor"; do
		printf '%s %s ' "$(awk '/^RssAnon/ {print $2}' "/proc/$pid/status")" "$(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l)"
	done
	echo "$engine"
}

free_before=$(sql -c "SELECT memory_free_bytes FROM dsv3_stat_engine()")
( while :; do note >>"$work/notes"; sleep 10; done ) &
sampler=$!
pgbench -n -M simple -c "$sessions" -j 2 -T "$seconds" -f "$work/soak.pgb" "$PGDATABASE" >"$work/pgbench.out" 2>&1
status=$?
kill "$sampler" 2>/dev/null
wait "$sampler" 2>/dev/null
sampler=''
note >>"$work/notes"

read -r equal different cancelled < <(sql -F ' ' -c "SELECT coalesce(sum(equal), 0), coalesce(sum(different), 0), coalesce(sum(cancelled), 0) FROM soak_seen")
echo "# $sessions sessions, $seconds s: $equal answers equal, $different different, $cancelled cancelled"
check $((status != 0)) "every session ran to its end"
[ $status -eq 0 ] || tail -n 20 "$work/pgbench.out" | sed 's/^/# /'
check $((different != 0 || equal == 0)) "each answer equals its answer alone ($equal)"
for ((i = 0; i < 50; i++)); do
	left=$(sql -c "SELECT count(*) FROM dsv3_activity")
	[ "$left" = 0 ] && break
	sleep 0.1
done
check $((left != 0)) "no request is left"
free_after=$(sql -c "SELECT memory_free_bytes FROM dsv3_stat_engine()")
check $((free_after != free_before)) "all shared memory is free again ($free_before before, $free_after after)"
awk 'NR == 1 {engine = $5} $5 != engine {bad = 1} {a[NR] = $1; f[NR] = $2; b[NR] = $3; g[NR] = $4}
	END {k = int(NR / 3) + 1; printf "# engine %d -> %d -> %d kB, %d -> %d descriptors; supervisor %d -> %d -> %d kB, %d -> %d descriptors\n",
		a[1], a[k], a[NR], f[1], f[NR], b[1], b[k], b[NR], g[1], g[NR];
		exit bad || f[NR] > f[k] || g[NR] > g[k] || a[NR] > 1.05 * a[k] + 4096 || b[NR] > 1.05 * b[k] + 1024}' "$work/notes"
check $? "one engine all the time, no descriptor and no memory leaked"
echo "1..$test_no"
exit $((failed > 0))
