# Print the tables of a benchmark: measure calls this with the files "variants",
# "ratios" and "runs.tsv", in this order.  Variables: clients, a list of numbers
# of clients, perhaps with repetitions; rounds.

BEGIN {
	n_given = split(clients, given, " ")
	for (i = 1; i <= n_given; i++)
		if (!(given[i] in seen)) {
			seen[given[i]] = 1
			client[++n_clients] = given[i]
		}
	n_variants = n_ratios = 0
}

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

FILENAME ~ /\/ratios$/ {
	above[++n_ratios] = $1
	below[n_ratios] = $2
	target[n_ratios] = $3
	goal[n_ratios] = $4
	next
}

{
	rate[$1, $2, $3] = $4
	measured[$1] = 1
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

# What a list such as "0.95,32+:1.05" says for a number of clients, or "".
function wanted(list, count,    item, n, i, part, found) {
	found = ""
	if (list == "-")
		return found
	n = split(list, item, ",")
	for (i = 1; i <= n; i++) {
		if (split(item[i], part, ":") == 1)
			found = item[i]
		else if (part[1] ~ /\+$/ ? count >= part[1] + 0 : count == part[1] + 0)
			found = part[2]
	}
	return found
}

function verdict(list, count, ratio,    limit) {
	limit = wanted(list, count)
	if (limit == "")
		return "-"
	return ">= " limit (ratio >= limit + 0 ? " met" : " missed")
}

function print_rates(    i, j, r, n, line, last) {
	print "A second: pairs; in the group \"single\" statements, in \"hot\" hand-offs, in \"all\" locks, in \"bulk\" rows: medians of the rounds"
	print ""
	line = sprintf("%-54s", "group: variant                  clients:")
	for (j = 1; j <= n_clients; j++)
		line = line sprintf("%9d", client[j])
	print line
	for (i = 1; i <= n_variants; i++) {
		if (!(variant[i] in measured))
			continue
		line = sprintf("%-54s", group[variant[i]] ": " label[variant[i]])
		for (j = 1; j <= n_clients; j++) {
			n = 0
			for (r = 1; r <= rounds; r++)
				if ((variant[i], client[j], r) in rate)
					value[++n] = rate[variant[i], client[j], r]
			sort(n)
			line = line (n ? sprintf("%9.0f", median(n)) : "        -")
		}
		print line
	}
}

function print_ratio_head() {
	print ""
	print "Ratios: medians, and from lowest to highest, of the ratios within a round"
	print ""
	printf "%-40s %7s %6s  %-12s  %-14s  %s\n", "ratio", "clients", "median", "low-high", "target", "goal"
}

function print_ratios(    i, j, r, n, headed) {
	for (i = 1; i <= n_ratios; i++)
		for (j = 1; j <= n_clients; j++) {
			n = 0
			for (r = 1; r <= rounds; r++)
				if ((above[i], client[j], r) in rate && rate[below[i], client[j], r] > 0)
					value[++n] = rate[above[i], client[j], r] / rate[below[i], client[j], r]
			if (n == 0)
				continue
			if (!headed++)
				print_ratio_head()
			sort(n)
			printf "%-40s %7d %6.2f  %5.2f-%-5.2f   %-14s  %s\n",
				above[i] " / " below[i], client[j], median(n), value[1], value[n],
				verdict(target[i], client[j], median(n)), verdict(goal[i], client[j], median(n))
		}
}

END {
	print_rates()
	print_ratios()
}
