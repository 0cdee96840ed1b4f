# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of prove
# Locks spread over two servers by PL/Proxy, with doc/examples/plproxy_*.sql.  To be
# sourced by prove.

declare -A shard_port=([proxy]=61121 [s0]=61122 [s1]=61123)

shard_start() {
	"$bindir/pg_ctl" -D "$place/shards/$1" -l "$place/shards/$1.log" -s -w -t 60 start
}

shards_stop() {
	local node
	for node in proxy s0 s1; do
		[ ! -f "$place/shards/$node/postmaster.pid" ] ||
			"$bindir/pg_ctl" -D "$place/shards/$node" -s -w -m fast stop 2>/dev/null || true
	done
}

# shard_sql NODE SQL [ROLE]
shard_sql() {
	psql "host=127.0.0.1 port=${shard_port[$1]} user=${3:-postgres} dbname=postgres connect_timeout=2" \
		-XqAt -v ON_ERROR_STOP=1 -c "$2"
}

# leases_on NODE LETTER: how many locks with such names are held there
leases_on() {
	shard_sql "$1" "SELECT count(*) FROM dlock_leases WHERE name LIKE '$2%'"
}

# acquire_hundred LETTER: a hundred locks, for an ordinary role; how many were granted?
acquire_hundred() {
	local i
	for ((i = 0; i < 100; i++)); do
		echo "SELECT locks.acquire('$1$i', 'me', '10 min') IS NOT NULL;"
	done | psql "host=127.0.0.1 port=${shard_port[proxy]} user=app dbname=postgres" \
		-XqAt 2>>"$place/shards/errors" | grep -cx t || true
}

run_shards() {
	local node granted of_s0 of_s1 token
	mkdir "$place/shards"
	for node in proxy s0 s1; do
		"$bindir/initdb" -D "$place/shards/$node" -U postgres -A trust -E UTF8 --locale=C --no-sync \
			--no-instructions >"$place/shards/$node.initdb"
		{
			cat "$place/base.conf"
			echo "listen_addresses = '127.0.0.1'"
			echo "unix_socket_directories = ''"
			echo "port = ${shard_port[$node]}"
			echo "shared_buffers = 16MB"
		} >>"$place/shards/$node/postgresql.conf"
		shard_start "$node"
		shard_sql "$node" 'CREATE ROLE app LOGIN'
	done
	for node in s0 s1; do
		shard_sql "$node" 'CREATE EXTENSION dlock'
		psql "host=127.0.0.1 port=${shard_port[$node]} user=postgres dbname=postgres" \
			-Xq -v ON_ERROR_STOP=1 -f "$top/doc/examples/plproxy_shard.sql"
	done
	psql "host=127.0.0.1 port=${shard_port[proxy]} user=postgres dbname=postgres" -Xq -v ON_ERROR_STOP=1 \
		-v "shard0=dbname=postgres host=127.0.0.1 port=${shard_port[s0]}" \
		-v "shard1=dbname=postgres host=127.0.0.1 port=${shard_port[s1]}" \
		-f "$top/doc/examples/plproxy_proxy.sql"

	granted=$(acquire_hundred n)
	of_s0=$(leases_on s0 n)
	of_s1=$(leases_on s1 n)
	check "a hundred locks are granted: $of_s0 on one server, $of_s1 on the other" \
		test "$granted/$((of_s0 + of_s1))" = 100/100
	check "both have some" test "$of_s0" -gt 20 -a "$of_s1" -gt 20
	check "none is granted twice" test "$(acquire_hundred n)" = 0
	token=$(shard_sql proxy "SELECT locks.acquire('job', 'me', '10 min')" app)
	check "a lease is renewed" test "$(shard_sql proxy "SELECT locks.renew('job', $token)" app)" = t
	check "a lease is checked" test "$(shard_sql proxy "SELECT locks.is_held('job', $token)" app)" = t
	check "a lease is released" test "$(shard_sql proxy "SELECT locks.release('job', $token)" app)" = t

	"$bindir/pg_ctl" -D "$place/shards/s1" -s -w -m immediate stop
	check "with one server down, only its locks fail" test "$(acquire_hundred m)" = "$(leases_on s0 m)"
	check "a lease on the other is held" test "$(acquire_hundred n)" = 0
	shard_start s1
	check "when it is back, its leases are held" test "$(acquire_hundred n)" = 0
	check "and the locks that failed are granted" test "$(($(acquire_hundred m) + $(leases_on s0 m)))" = 100
	shards_stop
}
