# Print the tables of latencies: measure calls this with the files "variants",
# "latencies" and "latency.tsv", in this order.  Variable: rounds.

BEGIN { n_variants = n_limits = n_counts = 0 }

/^#/ || NF == 0 { next }

FILENAME ~ /\/variants$/ {
	variant[++n_variants] = $1
	group[$1] = $2
	text = $6
	for (i = 7; i <= NF; i++)
		text = text " " $i
	label[$1] = text
	next
}

FILENAME ~ /\/latencies$/ {
	above[++n_limits] = $1
	part[n_limits] = $2
	below[n_limits] = $3
	target[n_limits] = $4
	next
}

{
	samples[$1, $2] += $4
	single[$1, $2] = ($4 == 1)
	found[$1, $2, $3, "p50"] = $5 / 1000
	found[$1, $2, $3, "p99"] = $6 / 1000
	if (!($2 in seen)) {
		seen[$2] = 1
		for (i = ++n_counts; i > 1 && count[i - 1] > $2 + 0; i--)
			count[i] = count[i - 1]
		count[i] = $2 + 0
	}
}

# Sort value[1..n] in place; what is asked of it next is low, median and high.
function sort(n,    i, j, v) {
	for (i = 2; i <= n; i++) {
		v = value[i]
		for (j = i - 1; j >= 1 && value[j] > v; j--)
			value[j + 1] = value[j]
		value[j + 1] = v
	}
}

function median(n) {
	return n % 2 ? value[(n + 1) / 2] : (value[n / 2] + value[n / 2 + 1]) / 2
}

# Put the values of the rounds in order; how many are there?
function collect(what, clients, percentile, of,    r, n) {
	n = 0
	for (r = 1; r <= rounds; r++) {
		if (!((what, clients, r, percentile) in found))
			continue
		if (of == "-")
			value[++n] = found[what, clients, r, percentile]
		else if (found[of, clients, r, percentile] > 0)
			value[++n] = found[what, clients, r, percentile] / found[of, clients, r, percentile]
	}
	sort(n)
	return n
}

function print_latency(what, text,    j, p50, p99, clients) {
	for (j = 1; j <= n_counts; j++) {
		clients = count[j]
		if (!((what, clients) in samples))
			continue
		p50 = median(collect(what, clients, "p50", "-"))
		p99 = median(collect(what, clients, "p99", "-"))
		printf "%-62s %7d %8d %10.3f %10s\n", text, clients, samples[what, clients], p50,
			single[what, clients] ? "-" : sprintf("%.3f", p99)
	}
}

function print_latencies(    i, name, text) {
	print "Latencies in ms: medians of the rounds"
	print ""
	printf "%-62s %7s %8s %10s %10s\n", "group: variant", "clients", "samples", "p50", "p99"
	for (i = 1; i <= n_variants; i++) {
		name = variant[i]
		text = group[name] ": " label[name]
		print_latency(name, text)
		print_latency(name ".dlock", text ", dlock waits")
		print_latency(name ".take", text ", dlock_take waits")
		print_latency(name ".notify", text ", release with NOTIFY, acquire")
		print_latency(name ".notify2", text ", release, NOTIFY, acquire")
		print_latency(name ".polling", text ", acquire every 10 ms")
		print_latency(name ".table", text ", lease table, release with NOTIFY")
		print_latency(name ".advisory", text ", advisory lock")
		print_latency(name ".before", text ", acquire before")
		print_latency(name ".busy", text ", with a busy processor")
		print_latency(name ".meanwhile", text ", acquire meanwhile")
		print_latency(name ".reaped", text ", all removed")
	}
}

function print_limits(    i, j, n, text, headed) {
	for (i = 1; i <= n_limits; i++)
		for (j = 1; j <= n_counts; j++) {
			n = collect(above[i], count[j], part[i], below[i])
			if (n == 0)
				continue
			if (!headed++) {
				print ""
				print "Ratios of latencies, and latencies in ms that have a target: medians, and from lowest to highest, of the rounds"
				print ""
				printf "%-46s %7s %9s  %-19s  %s\n", "ratio", "clients", "median", "low-high", "target"
			}
			text = above[i] (below[i] == "-" ? "" : " / " below[i]) (above[i] ~ /\.reaped$/ ? "" : ", " part[i])
			printf "%-46s %7d %9.2f  %9.2f-%-9.2f  %s\n", text, count[j], median(n), value[1], value[n],
				target[i] == "-" ? "-" : "<= " target[i] (median(n) <= target[i] + 0 ? " met" : " missed")
		}
}

END {
	print_latencies()
	print_limits()
}
