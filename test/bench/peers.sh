# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The groups "peers" and "peer_handoff": other systems that one takes for locks,
# started here on data of their own, and the client that speaks to them and to
# dlock, through libraries that npm has put beside it.  To be sourced by measure; needs
# $place, $sockets and progress.

peer_names() {
	echo redis_always redis_none redlock_always redlock_none etcd zookeeper
}

# peer_parts SERVER: how many processes it is, each with data of its own.
peer_parts() {
	case $1 in
	redlock_*) echo 5 ;;
	*) echo 1 ;;
	esac
}

# Debian's file of settings says how it starts ZooKeeper.
zookeeper_environment=/etc/zookeeper/conf/environment

# peer_package SERVER: the package that it lacks; nothing if it is here.
peer_package() {
	case $1 in
	redis_* | redlock_*) command -v redis-server >/dev/null || echo redis-server ;;
	etcd) command -v etcd >/dev/null || echo etcd-server ;;
	zookeeper)
		[ -r "$zookeeper_environment" ] && [ -e /usr/share/java/zookeeper.jar ] || echo zookeeper
		command -v java >/dev/null || echo default-jre-headless
		;;
	esac
}

peer_version() {
	local jar
	case $1 in
	redis_* | redlock_*) redis-server --version | sed 's/.* v=\([^ ]*\).*/Redis \1/' ;;
	etcd) etcd --version | sed -n 's/^etcd Version: /etcd /p' ;;
	zookeeper)
		jar=$(echo /usr/share/java/zookeeper-[0-9]*.jar)
		jar=${jar%.jar}
		echo "ZooKeeper ${jar##*-}"
		;;
	esac
}

is_peer() {
	[[ " $(peer_names) " = *" $1 "* ]]
}

# Servers that a user can reach who is not ours would be an open door, so where the
# system has Unix sockets, it listens on nothing else.
# peer_command SERVER PART: sets the array "command", and "address".
peer_command() {
	local name=$1 part=$2 data=$place/data/$1/$2 port other_port
	mkdir -p "$data"
	case $name in
	redis_* | redlock_*)
		address=$sockets/$name.$part
		command=(redis-server --port 0 --unixsocket "$address" --dir "$data" --save ''
			--daemonize no --auto-aof-rewrite-percentage 0)
		[[ $name != *_always ]] || command+=(--appendonly yes --appendfsync always)
		;;
	etcd)
		read -r port other_port < <(node "$place/peers/main.js" ports)
		command=(etcd --data-dir "$data/etcd" --listen-client-urls "http://127.0.0.1:$port"
			--advertise-client-urls "http://127.0.0.1:$port"
			--listen-peer-urls "http://127.0.0.1:$other_port"
			--initial-advertise-peer-urls "http://127.0.0.1:$other_port"
			--initial-cluster "default=http://127.0.0.1:$other_port")
		address=$port
		;;
	zookeeper)
		read -r port _ < <(node "$place/peers/main.js" ports)
		cat >"$data/zoo.cfg" <<-END
			tickTime=2000
			dataDir=$data
			clientPort=$port
			clientPortAddress=127.0.0.1
			maxClientCnxns=0
			admin.enableServer=false
		END
		command=(java -Xmx512m -D"zookeeper.root.logger=WARN,CONSOLE" -cp "$(zookeeper_classpath)"
			org.apache.zookeeper.server.quorum.QuorumPeerMain "$data/zoo.cfg")
		address=$port
		;;
	esac
}

zookeeper_classpath() {
	(
		set +u
		# shellcheck disable=SC1090 # Debian's
		. "$zookeeper_environment"
		echo "$CLASSPATH"
	)
}

# What it logs is of no interest unless it does not start.
declare -A peer_pids=()

# peer_start SERVER: false if it does not start, or does not do what it should.
peer_start() {
	local name=$1 part pid pids=() command=() address addresses='' end=$((SECONDS + 300))
	mkdir -p "$place/data/$name"
	: >"$place/log/$name"
	for ((part = 1; part <= $(peer_parts "$name"); part++)); do
		peer_command "$name" "$part"
		addresses+=${addresses:+,}$address
		# It must not outlive this script, however that ends.
		setpriv --pdeathsig KILL "${command[@]}" >>"$place/log/$name" 2>&1 </dev/null &
		pids+=($!)
		peer_pids[$name]=${pids[*]}
	done
	echo "$addresses" >"$place/data/$name.address"
	while [ "$SECONDS" -lt "$end" ]; do
		# ZooKeeper loses a request that comes too early.
		! timeout 20 node "$place/peers/main.js" check "${name%_*}" "$addresses" >"$place/log/$name.check" 2>&1 || return 0
		for pid in "${pids[@]}"; do
			kill -0 "$pid" 2>/dev/null || break 2
		done
		sleep 0.1
	done
	progress "$name does not start: $(tail -n 1 "$place/log/$name.check"); $(tail -n 1 "$place/log/$name")"
	peer_stop "$name"
	return 1
}

# Their data are thrown away, so nothing need be waited for but the end.
peer_stop() {
	local pid
	for pid in ${peer_pids[$1]:-}; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	unset "peer_pids[$1]"
}

peers_stop() {
	local name
	for name in $(peer_names); do
		peer_stop "$name"
	done
}

# peer_run MEASUREMENT SERVER PEER OPTION...: the client.
peer_run() {
	local measurement=$1 server=$2 peer=$3 address=-
	shift 3
	if is_peer "$server"; then
		address=$(cat "$place/data/$server.address")
	else
		local -x PGHOST=$sockets PGPORT
		PGPORT=$(server_port "$server")
	fi
	node "$place/peers/main.js" "$measurement" "$peer" "$address" "$@"
}

# ---------------------------------------------------------------- for measure

# Variants of a system that is not here, or that does not start, are left out, which
# the result says.
left_out=()

# leave_out PEER WHY: a server, or what a client speaks to.
leave_out() {
	local peer=$1 variant server script kept=()
	left_out+=("$peer: $2")
	progress "LEFT OUT: $peer: $2"
	for variant in "${variants[@]}"; do
		read -r _ _ server _ script _ <<<"$variant"
		[ "$server" = "$peer" ] || [[ $script = *"@$peer" || $script = *"@$peer."* ]] || kept+=("$variant")
	done
	variants=("${kept[@]}")
}

peers_leave_out_missing() {
	local name package
	for name in $(peer_names); do
		package=$(peer_package "$name" | tr '\n' ' ')
		! selected_on "$name" || [ -z "$package" ] || leave_out "$name" "not found, Debian's package ${package% }"
	done
}

# The systems that are selected, by the name that the client has for them.
peers_selected() {
	printf '%s\n' "${variants[@]}" | sed -n 's/.* peer\(_handoff\)\?@\([a-z]*\) .*/\2/p' | sort -u
}

setup_peers() {
	local name peer
	for peer in $(peers_selected); do
		node "$place/peers/main.js" version "$peer" >"$place/log/peers.$peer" 2>&1 ||
			leave_out "$peer" "there is no library of it for node"
	done
	for name in $(peer_names); do
		! selected_on "$name" || peer_start "$name" || {
			problem "$name does not start"
			leave_out "$name" "it does not start"
		}
	done
}

peers_describe() {
	local name peer version versions=''
	for name in $(peer_names); do
		selected_on "$name" || continue
		version=$(peer_version "$name")
		[[ $versions = *"$version"* ]] || versions+="${versions:+, }$version"
	done
	for peer in $(peers_selected); do
		version=$(cat "$place/log/peers.$peer")
		[[ $versions = *"$version"* ]] || versions+="${versions:+, }$version"
	done
	[ -z "$versions" ] || say "peers: $versions"
	! selected_in peers || say "  group \"peers\": runs of $peer_seconds s after half a second, by one program in Node $(node --version | tr -d v)"
}

# measure_peer ROUND CLIENTS VARIANT...: a run, a line of runs.tsv.
measure_peer() {
	local round=$1 count=$2 name=$3 group=$4 server=$5 sync=$6 script=$7
	local log=$place/log/$name.$count.$round rate
	tidy_before "$group" "$script"
	if ! PGOPTIONS="-c synchronous_commit=$sync" PGUSER=bench PGDATABASE=bench \
		peer_run rate "$server" "${script#*@}" clients="$count" seconds="$peer_seconds" names="$names" >"$log" 2>&1; then
		problem "$name, $count clients, round $round: $(tail -n 1 "$log")"
		is_peer "$server" || release_by_force "$server"
		return
	fi
	rate=$(awk '/^rate / { print $2 }' "$log")
	printf '%s\t%s\t%s\t%s\n' "$name" "$count" "$round" "$rate" >>"$place/runs.tsv"
	progress "$(printf 'round %s of %s, %2s clients  %-18s %9.0f/s' "$round" "$rounds" "$count" "$name" "$rate")"
}
