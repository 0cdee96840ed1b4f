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
	columns[is_beside(group[$1]) ? "" : $2] = 1
	measured[$1] = 1
}

# Is a run one beside so many sessions or leases, and not by so many clients?
function is_beside(name) {
	return name == "crowd" || name == "million" || name == "tasks"
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
	if (sub(/^<=/, "", limit))
		return "<= " limit (ratio <= limit + 0 ? " met" : " missed")
	return ">= " limit (ratio >= limit + 0 ? " met" : " missed")
}

# Put the values of the rounds in order, divided by those of another variant if
# one is named, perhaps with an @ and another number of clients; how many are there?
function collect(what, count, of,    r, part, other) {
	n_values = 0
	if (split(of, part, "@") == 2)
		other = part[2]
	else
		other = count
	for (r = 1; r <= rounds; r++) {
		if (!((what, count, r) in rate))
			continue
		if (of == "" || of == "-")
			value[++n_values] = rate[what, count, r]
		else if (rate[part[1], other, r] > 0)
			value[++n_values] = rate[what, count, r] / rate[part[1], other, r]
	}
	sort(n_values)
	return n_values
}

function print_rates(    i, j, line) {
	print "A second: pairs; in the group \"single\" statements, in \"hot\" hand-offs, in \"all\" locks, in \"bulk\" rows: medians of the rounds"
	print ""
	line = sprintf("%-62s", "group: variant                  clients:")
	for (j = 1; j <= n_clients; j++)
		if (client[j] in columns)
			line = line sprintf("%9d", client[j])
	print line
	for (i = 1; i <= n_variants; i++) {
		if (!(variant[i] in measured) || is_beside(group[variant[i]]))
			continue
		line = sprintf("%-62s", group[variant[i]] ": " label[variant[i]])
		for (j = 1; j <= n_clients; j++)
			if (client[j] in columns)
				line = line (collect(variant[i], client[j], "") ? sprintf("%9.0f", median(n_values)) : "        -")
		print line
	}
}

function print_crowds(    i, j) {
	print ""
	print "Beside a crowd, live leases or waiting tasks: pairs, hand-offs, calls or tasks a second, or processes: medians of the rounds"
	print ""
	printf "%-62s%9s%9s\n", "variant", "size", ""
	for (i = 1; i <= n_variants; i++)
		for (j = 1; j <= n_clients; j++)
			if (is_beside(group[variant[i]]) && collect(variant[i], client[j], ""))
				printf "%-62s%9d%9.0f\n", label[variant[i]], client[j], median(n_values)
}

function print_ratio_head() {
	print ""
	print "Ratios: medians, and from lowest to highest, of the ratios within a round"
	print ""
	printf "%-40s %7s %6s  %-12s  %-14s  %s\n", "ratio", "clients", "median", "low-high", "target", "goal"
}

function print_ratios(    i, j, headed) {
	for (i = 1; i <= n_ratios; i++)
		for (j = 1; j <= n_clients; j++) {
			if (below[i] == above[i] "@" client[j] || !collect(above[i], client[j], below[i]))
				continue
			if (!headed++)
				print_ratio_head()
			printf "%-40s %7d %6.2f  %5.2f-%-5.2f   %-14s  %s\n",
				above[i] (below[i] == "-" ? "" : " / " below[i]), client[j], median(n_values),
				value[1], value[n_values],
				verdict(target[i], client[j], median(n_values)), verdict(goal[i], client[j], median(n_values))
		}
}

END {
	for (i in columns)
		shown[i == "" ? "crowds" : "rates"] = 1
	if ("rates" in shown)
		print_rates()
	if ("crowds" in shown)
		print_crowds()
	print_ratios()
}
