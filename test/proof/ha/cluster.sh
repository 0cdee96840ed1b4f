# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # variables of prove, and for it
# Two servers, n1 and n2, under Patroni, which keeps its state in etcd.  To be
# sourced by prove.

# Short times, so that a run takes seconds.
patroni_ttl=10
patroni_wait=2
patroni_retry=3

declare -A port=([n1]=61111 [n2]=61112) rest=([n1]=61113 [n2]=61114)
etcd_port=61115
etcd_peer_port=61116
etcd_pid=
declare -A patroni_pid=()

etcd_start() {
	etcd --name ha --data-dir "$place/etcd" --log-level error \
		--listen-client-urls "http://127.0.0.1:$etcd_port" \
		--advertise-client-urls "http://127.0.0.1:$etcd_port" \
		--listen-peer-urls "http://127.0.0.1:$etcd_peer_port" \
		--initial-advertise-peer-urls "http://127.0.0.1:$etcd_peer_port" \
		--initial-cluster "ha=http://127.0.0.1:$etcd_peer_port" >"$place/etcd.log" 2>&1 &
	etcd_pid=$!
	wait_until 30 "etcd answers" curl -sf "http://127.0.0.1:$etcd_port/health"
}

# patroni_config NODE yes|no: with synchronous replication or without
patroni_config() {
	cat <<-END
		scope: ha
		name: $1
		restapi:
		  listen: 127.0.0.1:${rest[$1]}
		  connect_address: 127.0.0.1:${rest[$1]}
		etcd3:
		  host: 127.0.0.1:$etcd_port
		bootstrap:
		  dcs:
		    ttl: $patroni_ttl
		    loop_wait: $patroni_wait
		    retry_timeout: $patroni_retry
		    maximum_lag_on_failover: 104857600
		    synchronous_mode: $2
		    postgresql:
		      use_pg_rewind: true
		      parameters:
		        max_connections: 50
		        shared_buffers: 16MB
		        wal_keep_size: 256MB
		  initdb:
		  - encoding: UTF8
		  - locale: C
		  - data-checksums
		  - no-sync
		postgresql:
		  listen: 127.0.0.1:${port[$1]}
		  connect_address: 127.0.0.1:${port[$1]}
		  bin_dir: $bindir
		  data_dir: $work/$1
		  custom_conf: $place/base.conf
		  pgpass: $work/$1.pgpass
		  authentication:
		    superuser:
		      username: postgres
		    replication:
		      username: replicator
		  parameters:
		    unix_socket_directories: ''
		  pg_hba:
		  - host all all 127.0.0.1/32 trust
		  - host replication all 127.0.0.1/32 trust
		watchdog:
		  mode: off
	END
}

patroni_start() {
	patroni "$work/$1.yml" >>"$work/$1.log" 2>&1 &
	patroni_pid[$1]=$!
}

postmaster_of() {
	head -n 1 "$work/$1/postmaster.pid" 2>/dev/null
}

# End a node as a machine does that loses its power: all processes at once.
node_kill() {
	local postmaster children
	postmaster=$(postmaster_of "$1")
	mapfile -t children < <(pgrep -P "$postmaster")
	kill -KILL "${patroni_pid[$1]}" "$postmaster" "${children[@]}" 2>/dev/null || true
	wait "${patroni_pid[$1]}" 2>/dev/null || true
}

# node_sql NODE SQL...: of a node that may be either
node_sql() {
	local node=$1
	shift
	PGOPTIONS="${options:-}" "$bindir/psql" "host=127.0.0.1 port=${port[$node]} user=postgres dbname=postgres connect_timeout=2" \
		-XqAt -v ON_ERROR_STOP=1 "${@/#/-c}"
}

is_primary() {
	[ "$(node_sql "$1" 'SELECT pg_is_in_recovery()' 2>/dev/null)" = f ]
}

# is_followed NODE [STATE]: does it have a standby that streams, in this state?
is_followed() {
	[ "$(node_sql "$1" "SELECT count(*) FROM pg_stat_replication
		WHERE application_name IN ('n1', 'n2') AND state = 'streaming' AND sync_state ~ '^(${2:-.*})$'" 2>/dev/null)" = 1 ]
}

# cluster_start yes|no: the primary is n1
cluster_start() {
	work=$place/$scenario
	mkdir "$work"
	[ -n "$etcd_pid" ] || etcd_start
	curl -sf "http://127.0.0.1:$etcd_port/v3/kv/deleterange" \
		-d '{"key": "AA==", "range_end": "AA=="}' >/dev/null
	patroni_config n1 "$1" >"$work/n1.yml"
	patroni_config n2 "$1" >"$work/n2.yml"
	patroni_start n1
	wait_until 60 "n1 is the primary" is_primary n1
	patroni_start n2
	wait_until 60 "n2 follows n1" is_followed n1 "$([ "$1" = true ] && echo sync || echo async)"
	node_sql n1 'CREATE EXTENSION dlock' >/dev/null
}

# Patroni first, so that nothing is started again.
cluster_stop() {
	local node children
	for node in n1 n2; do
		[ -n "${patroni_pid[$node]:-}" ] || continue
		mapfile -t children < <(pgrep -P "${patroni_pid[$node]}")
		kill -KILL "${patroni_pid[$node]}" "${children[@]}" 2>/dev/null || true
		wait "${patroni_pid[$node]}" 2>/dev/null || true
	done
	patroni_pid=()
	[ -z "${work:-}" ] || end_servers_below "$work" || true
}
