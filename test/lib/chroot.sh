# shellcheck shell=bash
# Debian roots: with another major version of PostgreSQL, for test/versions, and bare
# ones, for test/bare and packages.
#
# A root of a version is only unpacked, not installed: no maintainer script runs in it, which
# makes it in seconds.  What those scripts would have left behind and the tests
# need, finish_root writes.  Roots are kept as archives in a cache.

chroot_cache=${DLOCK_CHROOT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/dlock}

newest_version=18

# The Debian release that has a major version.
chroot_suite() {
	case $1 in
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo forky ;;
	*) die "no Debian release is known for PostgreSQL $1" ;;
	esac
}

# The mirror in apt's lists; nothing if there are no lists.
listed_mirror() {
	# shellcheck source=/dev/null disable=SC2016 # apt-get expands these
	. /etc/os-release && apt-get indextargets \
		--format '$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)' |
		awk -v codename="${VERSION_CODENAME:-}" \
			'$1 == "Packages" && $2 == codename && $3 == "main" { print $4; exit }'
}

# Where this machine gets its Debian packages from.
debian_mirror() {
	local mirror
	mirror=$(listed_mirror)
	if [ -z "$mirror" ]; then
		apt-get -qq update >&2 || die "apt-get update failed"
		mirror=$(listed_mirror)
	fi
	[ -n "$mirror" ] || die "apt knows no Debian mirror on this machine"
	echo "$mirror"
}

# The development files are left out here: fetch_headers takes them without
# their dependencies, which are clang and llvm.  All that the tests need is there from
# the beginning, for there is no apt in a root.
chroot_packages() {
	local packages=(
		base-files dash bash coreutils grep sed mawk findutils diffutils tar gzip
		libc-bin procps util-linux make gcc libc6-dev perl libipc-run-perl
		libpq-dev "postgresql-$1"
		pgbouncer
	)
	# The languages of src/clients, with their newest drivers.
	[ "$1" != "$newest_version" ] || packages+=(
		python3-psycopg python3-psycopg-pool nodejs node-pg
		golang-go golang-github-jackc-pgx-v5-dev golang-github-lib-pq-dev
		default-jdk-headless libpostgresql-jdbc-java
	)
	(IFS=, && echo "${packages[*]}")
}

# Unpack the server's development files.  Runs as a hook of mmdebstrap.
fetch_headers() {
	local root=$1 version=$2
	cd "$root/tmp" || return
	APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q download "postgresql-server-dev-$version"
	dpkg-deb -x postgresql-server-dev-*.deb "$root"
	rm postgresql-server-dev-*.deb
}

finish_root() {
	local root=$1 version=$2 gcc

	printf '%s\n' root:x:0:0:root:/root:/bin/bash postgres:x:101:101::/tmp:/bin/bash \
		nobody:x:65534:65534::/nonexistent:/bin/false >"$root/etc/passwd"
	printf '%s\n' root:x:0: postgres:x:101: nogroup:x:65534: >"$root/etc/group"
	echo '127.0.0.1 localhost' >"$root/etc/hosts"
	printf '%s: files\n' passwd group hosts >"$root/etc/nsswitch.conf"

	# The alternatives, which the packages make at configuration.
	ln -sf mawk "$root/usr/bin/awk"
	ln -sf dash "$root/usr/bin/sh"
	gcc=$(cd "$root/usr/bin" && readlink gcc)
	ln -sf "$gcc" "$root/usr/bin/cc"
	[ ! -d "$root/usr/lib/jvm" ] || ln -sf ../lib/jvm/default-java/bin/{java,javac} "$root/usr/bin/"
	# pg_config is a wrapper that asks the postgresql-common package.
	ln -sf "../lib/postgresql/$version/bin/pg_config" "$root/usr/bin/pg_config"

	# Just-in-time compilation is more than half of a root.  Without llvmjit
	# the server does without it; with llvmjit but not its libraries it fails.
	rm -rf "$root"/usr/lib/postgresql/*/lib/{bitcode,llvmjit*} \
		"$root"/usr/lib/*/{libLLVM*,libz3*} \
		"$root"/usr/share/{doc,man,locale,info} \
		"$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
		"$root"/var/lib/apt/lists/* "$root"/tmp/*
	# No test needs these: Java's parts for making runtimes, the source of Go's compiler,
	# its tests and its other tools.
	rm -rf "$root"/usr/lib/jvm/*/jmods "$root"/usr/share/go-*/{test,src/cmd} \
		"$root"/usr/bin/*-lto-dump-*
	[ ! -d "$root/usr/share/gocode" ] || find "$root"/usr/share/go-* "$root/usr/share/gocode" \
		\( -name testdata -o -name '*_test.go' \) -prune -exec rm -rf {} +
	find "$root/usr/bin" -type f -size +1M -exec grep -qF golang.org/x/tools/ {} ';' -delete
	chroot "$root" ldconfig
}

# The archive of a root.  Its name carries a checksum of the recipe, so that a change
# of that does not meet an old root.
chroot_archive() {
	keep_archive "postgresql-$1" \
		"$(declare -f chroot_suite chroot_packages fetch_headers finish_root make_root)" \
		make_root "$1"
}

make_root() {
	local version=$1 root=$2 self=${BASH_SOURCE[0]} mirror
	mirror=$(debian_mirror) || return
	# A PATH without local interpreters, for mmdebstrap is a Perl script and
	# runs the tools of the system.  The mirror's clock may not be ours.
	PATH=/usr/sbin:/usr/bin:/sbin:/bin mmdebstrap --mode=root --variant=extract \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='Acquire::Check-Date "false"' \
		--include="$(chroot_packages "$version")" \
		--extract-hook="bash -euc '. \"$self\"; fetch_headers \"\$0\" $version' \"\$1\"" \
		--extract-hook="bash -euc '. \"$self\"; finish_root \"\$0\" $version' \"\$1\"" \
		"$(chroot_suite "$version")" "$root" "$mirror"
}

# A root with what every Debian has, and make; whole, so that apt works in it.
make_bare_root() {
	local suite=$1 root=$2 mirror
	mirror=$(debian_mirror) || return
	PATH=/usr/sbin:/usr/bin:/sbin:/bin mmdebstrap --mode=root --variant=minbase \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='Acquire::Check-Date "false"' \
		--include=make "$suite" "$root" "$mirror"
}

# keep_archive NAME RECIPE COMMAND...: print the archive NAME of what the command
# puts into the directory that is added to its arguments; made now unless the cache
# has it.  RECIPE is what it depends on.
keep_archive() {
	local name=$1 recipe archive work
	recipe=$(cksum <<<"$2")
	shift 2
	archive=$chroot_cache/$name-${recipe%% *}.tar.zst
	if [ ! -s "$archive" ]; then
		mkdir -p "$chroot_cache"
		work=$(mktemp -d "$chroot_cache/making.XXXXXX")
		"$@" "$work/root" >"$work/log" 2>&1 || {
			tail -n 20 "$work/log" >&2
			rm -rf "$work"
			die "could not make the root $name"
		}
		# A shell that is substituted goes on after an error.
		tar -C "$work/root" -c . | zstd -q -3 -T0 -o "$work/archive" || {
			rm -rf "$work"
			die "could not write the archive of the root $name"
		}
		rm -f "$chroot_cache/$name-"*.tar.zst
		mv "$work/archive" "$archive"
		rm -rf "$work"
	fi
	echo "$archive"
}

bare_archive() {
	keep_archive "bare-$1" "$(declare -f make_bare_root)" make_bare_root "$1"
}

# unpack_bare SUITE ROOT: with the packages that apt has fetched before, and with a
# dpkg that does not wait for the disk.
unpack_bare() {
	local suite=$1 root=$2 archive
	archive=$(bare_archive "$suite")
	mkdir -p "$root"
	tar -C "$root" --zstd -xf "$archive"
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
	cp -L /etc/resolv.conf "$root/etc/resolv.conf"
	cp "$chroot_cache/packages-$suite"/*.deb "$root/var/cache/apt/archives/" 2>/dev/null || true
}

# keep_packages SUITE ROOT: keep what apt has fetched there, for the next time.
keep_packages() {
	local suite=$1 root=$2 work
	run_in_root "$root" apt-get -qq autoclean
	work=$(mktemp -d "$chroot_cache/making.XXXXXX")
	cp "$root"/var/cache/apt/archives/*.deb "$work/"
	rm -rf "$chroot_cache/packages-$suite"
	mv "$work" "$chroot_cache/packages-$suite"
}

# graft_server VERSION FROM TO: put the server of one root into another, which
# has another version, to upgrade from.  A newer Debian runs what was built for an
# older one, given the libraries that it has no more.
graft_server() {
	local version=$1 from=$2 to=$3 directory library
	for directory in lib share include; do
		mkdir -p "$to/usr/$directory/postgresql"
		cp -a "$from/usr/$directory/postgresql/$version" "$to/usr/$directory/postgresql/"
	done
	rm -rf "$to/usr/lib/postgresql/$version/lib"/{bitcode,llvmjit*}
	for library in $(chroot "$from" sh -c "ldd /usr/lib/postgresql/$version/bin/*" 2>/dev/null |
		awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u); do
		[ -e "$to$library" ] || cp -L "$from$library" "$to$library"
	done
	chroot "$to" ldconfig
	chroot "$to" "/usr/lib/postgresql/$version/bin/postgres" --version >/dev/null
}

# run_in_root ROOT COMMAND...: in namespaces of its own, so that processes and
# mounts go when it ends, or when the shell does that has called this.
run_in_root() {
	local root=$1
	shift
	# shellcheck disable=SC2016 # for the inner shell to expand
	setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child sh -euc '
		mount -t proc proc "$0/proc"
		mount --rbind /dev "$0/dev"
		mount -t tmpfs tmpfs "$0/dev/shm"
		exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			HOME=/root LANG=C.UTF-8 "$@"' "$root" "$@"
}
