# shellcheck shell=bash
# Makes sure that what the scripts need is on the machine.  What is asked for is
# the thing itself and not the package, so that a server built from source or
# another distribution will do.  Needs common.sh.

# Every pg_config that is here, the newest of the distribution's first.
list_pg_configs() {
	printf '%s\n' /usr/lib/postgresql/*/bin/pg_config | sort -rV
	command -v pg_config || true
}

# The pg_config to use: the one PG_CONFIG names, or else the newest server with
# its development files.  Nothing is printed and false returned if there is none.
find_pg_config() {
	local candidate candidates=()
	if [ -n "${PG_CONFIG:-}" ]; then
		candidates=("$(command -v "$PG_CONFIG" || echo "$PG_CONFIG")")
	else
		mapfile -t candidates < <(list_pg_configs)
	fi
	for candidate in "${candidates[@]}"; do
		if pg_config_usable "$candidate"; then
			echo "$candidate"
			return
		fi
	done
	return 1
}

# server_major PG_CONFIG
server_major() {
	"$1" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/'
}

has_server() {
	[ -x "$1" ] && [ -x "$("$1" --bindir)/postgres" ]
}

# Debian has pg_config and pgxs.mk in the package of the client, so only the headers
# tell that the development files are there.
pg_config_usable() {
	has_server "$1" && [ -f "$("$1" --pgxs)" ] &&
		[ -f "$("$1" --includedir-server)/postgres.h" ]
}

# The major version of the newest server here that dlock supports; nothing if
# there is none.
installed_major() {
	local candidate major
	while read -r candidate; do
		has_server "$candidate" || continue
		major=$(server_major "$candidate")
		if [ "$major" -ge 15 ] && [ "$major" -le 18 ]; then
			echo "$major"
			return
		fi
	done < <(list_pg_configs)
}

# The major version of the server to install.
distribution_major() {
	local major
	major=$(apt-cache depends postgresql 2>/dev/null |
		sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
	if [ -z "$major" ]; then
		# No package lists yet.
		# shellcheck source=/dev/null
		case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
		bookworm) major=15 ;;
		trixie) major=17 ;;
		*) major=18 ;;
		esac
	fi
	echo "$major"
}

# missing_packages PURPOSE...: Debian's names of what is not there, a line each.
missing_packages() {
	local purpose major name
	for purpose; do
		case $purpose in
		build)
			have make || echo make
			if ! have cc; then
				echo gcc
			fi
			[ -e /usr/include/stdio.h ] || echo libc6-dev
			if ! find_pg_config >/dev/null; then
				[ -z "${PG_CONFIG:-}" ] ||
					die "PG_CONFIG=$PG_CONFIG names no server with its development files"
				major=$(installed_major)
				if [ -z "$major" ]; then
					major=$(distribution_major)
					echo "postgresql-$major"
				fi
				echo "postgresql-server-dev-$major"
			elif [ ! -e "$("$(find_pg_config)" --includedir)/libpq-fe.h" ]; then
				# The command is linked with libpq.
				echo libpq-dev
			fi
			;;
		test)
			have prove || echo perl
			perl -MIPC::Run -e 1 2>/dev/null || echo libipc-run-perl
			;;
		parts)
			# What single tests need, and are skipped without.
			have pgbouncer || have /usr/sbin/pgbouncer || echo pgbouncer
			perl -MIO::Pty -e 1 2>/dev/null || echo libio-pty-perl
			have zsh || echo zsh
			have fish || echo fish
			;;
		versions)
			have mmdebstrap || echo mmdebstrap
			have zstd || echo zstd
			have clang || echo clang
			;;
		clients)
			/usr/bin/python3 -c 'import psycopg, psycopg_pool' 2>/dev/null ||
				printf '%s\n' python3-psycopg python3-psycopg-pool
			/usr/bin/python3 -c 'import setuptools, wheel, pip, ensurepip' 2>/dev/null ||
				printf '%s\n' python3-pip python3-setuptools python3-venv python3-wheel
			/usr/bin/python3 -c 'import sqlalchemy, psycopg2' 2>/dev/null ||
				printf '%s\n' python3-sqlalchemy python3-psycopg2
			/usr/bin/python3 -c 'import tooz, fixtures, testtools, pytest' 2>/dev/null ||
				printf '%s\n' python3-tooz python3-fixtures python3-testtools python3-pytest
			have mypy || echo mypy
			have c++ || echo g++
			have pkg-config || echo pkg-config
			have valgrind || echo valgrind
			have javac || echo default-jdk-headless
			[ -f /usr/share/java/postgresql.jar ] || echo libpostgresql-jdbc-java
			have mvn || echo maven
			for name in compiler:libmaven-compiler-plugin-java install:libmaven-install-plugin-java jar:libmaven-jar-plugin-java \
				resources:libmaven-resources-plugin-java surefire:libsurefire-java; do
				[ -d "/usr/share/maven-repo/org/apache/maven/plugins/maven-${name%%:*}-plugin" ] || echo "${name#*:}"
			done
			have go || echo golang-go
			[ -d /usr/share/gocode/src/github.com/lib/pq ] || echo golang-github-lib-pq-dev
			[ -d /usr/share/gocode/src/github.com/jackc/pgx/v5 ] || [ -d /usr/share/gocode/src/github.com/jackc/pgx/v4 ] ||
				echo golang-github-jackc-pgx-v4-dev
			have go-staticcheck || echo go-staticcheck
			# Its driver comes from npm, to fit the node that is.
			have node || echo nodejs
			have npm || echo npm
			;;
		peers)
			# What the benchmark compares with.
			have redis-server || echo redis-server
			have etcd || echo etcd-server
			[ -e /usr/share/java/zookeeper.jar ] || echo zookeeper
			have java || echo default-jre-headless
			;;
		tasks)
			# The job queues that the benchmark compares with come from npm.
			have node || echo nodejs
			have npm || echo npm
			;;
		plots)
			have gnuplot || echo gnuplot-nox
			;;
		monitoring)
			have prometheus || echo prometheus
			have prometheus-postgres-exporter || echo prometheus-postgres-exporter
			have prometheus-sql-exporter || echo prometheus-sql-exporter
			;;
		model)
			have spin || echo spin
			if ! have cc; then
				echo gcc
			fi
			[ -e /usr/include/stdio.h ] || echo libc6-dev
			;;
		ha)
			have patroni || echo patroni
			have etcd || echo etcd-server
			have curl || echo curl
			if find_pg_config >/dev/null; then
				major=$(server_major "$(find_pg_config)")
				[ -e "$("$(find_pg_config)" --pkglibdir)/plproxy.so" ] || echo "postgresql-$major-plproxy"
			fi
			;;
		checks)
			have clang || echo clang
			have codespell || echo codespell
			have shellcheck || echo shellcheck
			have valgrind || echo valgrind
			have git || echo git
			have unzip || echo unzip
			have nm || echo binutils
			;;
		esac
	done
}

apt_options=(-y --no-install-recommends)

# Services that come with them are not started, for the tests have servers of their own.
install_packages() (
	policy=/usr/sbin/policy-rc.d
	say "installing $*"
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		trap 'exit 130' INT TERM HUP
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q update >/dev/null && apt-get -q "${apt_options[@]}" install "$@" >/dev/null
)

# need_packages PURPOSE...: install what is missing as root, or tell how.
need_packages() {
	local missing
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ ${#missing[@]} -gt 0 ] || return 0

	have apt-get || die "needed and not found: ${missing[*]} (Debian's names)"
	if [ "$(id -u)" != 0 ]; then
		say "Packages are missing.  Run this as root, and then again what you ran:"
		say "apt-get update && apt-get install ${apt_options[*]} ${missing[*]}"
		exit 1
	fi
	install_packages "${missing[@]}" || die "apt-get failed: ${missing[*]}"
	mapfile -t missing < <(missing_packages "$@")
	[ ${#missing[@]} = 0 ] || die "still missing after installation: ${missing[*]}"
}

# want_packages PURPOSE...: install what is missing if that is possible, and say what
# is missing still.
want_packages() {
	local package missing
	mapfile -t missing < <(missing_packages "$@" | sort -u)
	[ ${#missing[@]} -gt 0 ] || return 0
	if [ "$(id -u)" = 0 ] && have apt-get; then
		# One that there is not must not keep the others away.
		for package in "${missing[@]}"; do
			install_packages "$package" || true
		done
		mapfile -t missing < <(missing_packages "$@" | sort -u)
	fi
	[ ${#missing[@]} = 0 ] || say "not found, so some tests are skipped: ${missing[*]}"
}
