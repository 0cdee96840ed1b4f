# Write a document anew with the figures of a run: publish calls this with the files
# "variants", "machine", "runs.tsv", "latency.tsv", "million.tsv" and the document, in this
# order.  What stands between these two lines is replaced:
#
#   <!-- figures: KIND WORD... -->
#   <!-- end of figures -->
#
# With "optional figures:" it stays as it is, and a message tells, if nothing of it was
# measured; otherwise that is an error.  A variant that lacks is told of.  Kinds:
#
#   machine                  what the run was made on and with
#   machine-line             the same in a sentence
#   rates VARIANT...         a second, a column for each number of clients, or size of a crowd
#   compared VARIANT...      the same, and in brackets the rate of the first one divided by this one's
#   beside VARIANT...        the same, and in brackets the rate divided by that of the first column
#   tasks VARIANT...         the same of tasks_*_1_off, tasks_*_20_off, and both on, a column for each
#   million                  memory of a lease, and how long it takes to load a million
#   ratios VARIANT/OTHER...  of the rates of the same round, from lowest to highest
#   latencies WHAT[:CLIENTS]...  p50 and p99 in ms, from lowest to highest
#
# All figures are medians of the rounds.

BEGIN {
	failed = inside = 0
	what_columns["crowd"] = "size of the crowd"
	what_columns["million"] = "live leases"
	what_columns["clients"] = "tasks"
	way["dlock"] = "dlock waits"
	way["take"] = "dlock_take waits"
	way["notify"] = "release with NOTIFY, acquire"
	way["table"] = "lease table with NOTIFY"
	way["advisory"] = "advisory lock"
	way["polling"] = "acquire every 10 ms"
	way["before"] = "acquire by others before"
	way["busy"] = "acquire by others beside a busy process"
	way["meanwhile"] = "acquire by others meanwhile"
	way["reaped"] = "until all are removed"
}

FILENAME ~ /\/variants$/ {
	if (/^#/ || NF == 0)
		next
	group[$1] = $2
	text = $6
	for (i = 7; i <= NF; i++)
		text = text " " $i
	label[$1] = text
	next
}

FILENAME ~ /\/machine$/ {
	machine = machine $0 "\n"
	line_of_machine[FNR] = $0
	next
}

FILENAME ~ /\/runs.tsv$/ {
	rate[$1, $2, $3] = $4
	counts[$1] = counts[$1] " " $2
	if ($3 > rounds)
		rounds = $3
	next
}

FILENAME ~ /\/latency.tsv$/ {
	p50[$1, $2, $3] = $5 / 1000
	p99[$1, $2, $3] = $6 / 1000
	if ($3 > rounds)
		rounds = $3
	next
}

FILENAME ~ /\/million.tsv$/ {
	million[$1] = $2
	next
}

/^<!-- (optional )?figures: .* -->$/ {
	print
	mark = $0
	optional = sub(/optional /, "")
	$NF = ""
	n_words = split($0, word, " ")
	if (optional && !any_measured()) {
		print FILENAME ": not measured, so it stays as it is: " mark >"/dev/stderr"
		next
	}
	print ""
	rows = 0
	if (word[3] == "machine")
		print_machine()
	else if (word[3] == "machine-line")
		print_machine_line()
	else if (word[3] == "rates" || word[3] == "compared" || word[3] == "ratios")
		print_rates(word[3])
	else if (word[3] == "beside")
		print_rates(word[3])
	else if (word[3] == "tasks")
		print_tasks()
	else if (word[3] == "million")
		print_million()
	else if (word[3] == "latencies")
		print_latencies()
	if (rows == 0) {
		print "nothing was measured of \"" mark "\"" >"/dev/stderr"
		failed = 1
	}
	print ""
	inside = 1
	next
}

/^<!-- end of figures -->$/ { inside = 0 }

!inside { print }

END { exit failed || inside }

# Of a mark of rates or ratios, or of "million".
function any_measured(    i, variant) {
	for (i = 4; i <= n_words; i++) {
		split(word[i], variant, "/")
		if (counts[variant[1]] != "")
			return 1
	}
	return word[3] == "million" && "load" in million
}

function tell_missing(name) {
	print FILENAME ": \"" name "\" was not measured" >"/dev/stderr"
}

function print_machine() {
	printf "```\n%s```\n", machine
	rows++
}

# Of the lines that measure's describe() begins with.
function print_machine_line(    text, others, i) {
	for (i in line_of_machine) {
		if (line_of_machine[i] ~ /^[0-9]+ processors: /)
			text = line_of_machine[i]
		if (line_of_machine[i] ~ /^use of the processors by others/) {
			others = line_of_machine[i]
			gsub(/[^0-9%, a-z]|.*median/, "", others)
		}
	}
	sub(/,.*/, "", others)
	sub(/ %.*/, "", others)
	sub(/^ */, "", others)
	if (text == "" || others == "")
		return
	sub(/: /, " (", text)
	printf "On %s), of which other work took %s %% (median).", text, others
	if (others + 0 > 5)
		printf " That is no quiet machine: it says little."
	print ""
	rows++
}

# Sort value[1..n] in place.
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

# Put the rates of the rounds in order, divided by those of another variant, or
# that divided by these.  How many are there?
function collect_rates(name, count, of, inverse,    r, n) {
	n = 0
	for (r = 1; r <= rounds; r++) {
		if (!((name, count, r) in rate))
			continue
		if (of == "")
			value[++n] = rate[name, count, r]
		else if (((of, count, r) in rate) && rate[of, count, r] > 0 && rate[name, count, r] > 0)
			value[++n] = inverse ? rate[of, count, r] / rate[name, count, r] : rate[name, count, r] / rate[of, count, r]
	}
	sort(n)
	return n
}

# The rates of the rounds, divided by those with another size.
function collect_beside(name, count, first,    r, n) {
	n = 0
	for (r = 1; r <= rounds; r++)
		if (((name, count, r) in rate) && rate[name, first, r] > 0)
			value[++n] = rate[name, count, r] / rate[name, first, r]
	sort(n)
	return n
}

function collect_latencies(list, name, count,    r, n) {
	n = 0
	for (r = 1; r <= rounds; r++)
		if ((name, count, r) in list)
			value[++n] = list[name, count, r]
	sort(n)
	return n
}

# Thousands apart, three digits that count.
function grouped(number,    digits, text) {
	number = number < 1000 ? int(number + 0.5) : int(number / 10 + 0.5) * 10
	digits = sprintf("%d", number)
	text = ""
	while (length(digits) > 3) {
		text = " " substr(digits, length(digits) - 2) text
		digits = substr(digits, 1, length(digits) - 3)
	}
	return digits text
}

function milliseconds(number) {
	return sprintf(number < 10 ? "%.2f" : number < 100 ? "%.1f" : "%.0f", number)
}

# The columns of a table, in order: column[1..n_columns].
function find_columns(    i, j, k, n, part, seen, v) {
	n_columns = 0
	for (i = 4; i <= n_words; i++) {
		split(word[i], part, "/")
		n = split(counts[part[1]], v, " ")
		for (j = 1; j <= n; j++) {
			if (v[j] in seen)
				continue
			seen[v[j]] = 1
			for (k = ++n_columns; k > 1 && column[k - 1] > v[j] + 0; k--)
				column[k] = column[k - 1]
			column[k] = v[j] + 0
		}
	}
}

function cell(kind, name, of, count,    n, text) {
	n = collect_rates(name, count, kind == "ratios" ? of : "")
	if (n == 0)
		return "-"
	if (kind == "ratios")
		return sprintf("%.2f (%.2f to %.2f)", median(n), value[1], value[n])
	text = grouped(median(n))
	if (kind == "beside" && count != column[1] && (n = collect_beside(name, count, column[1])) > 0)
		text = text sprintf(" (%.2f)", median(n))
	if (kind == "compared" && name != word[4] && (n = collect_rates(name, count, word[4], 1)) > 0)
		text = text sprintf(" (%.2f)", median(n))
	return text
}

# What a variant is called: also that of another group of this name.
function name_of(name) {
	return name in label ? label[name] : name
}

function print_rates(kind,    i, j, part, line, text) {
	find_columns()
	if (n_columns == 0)
		return
	split(word[4], part, "/")
	line = "| " (group[part[1]] in what_columns ? what_columns[group[part[1]]] : "clients") " |"
	for (j = 1; j <= n_columns; j++)
		line = line " " grouped(column[j]) " |"
	print line
	gsub(/[^|]+/, "---", line)
	print line
	for (i = 4; i <= n_words; i++) {
		part[2] = ""
		split(word[i], part, "/")
		if (counts[part[1]] == "") {
			tell_missing(part[1])
			continue
		}
		text = name_of(part[1])
		if (kind == "ratios")
			text = text " / " name_of(part[2])
		line = "| " text " |"
		for (j = 1; j <= n_columns; j++)
			line = line " " cell(kind, part[1], part[2], column[j]) " |"
		print line
		rows++
	}
}

# What follows the point in a name.
function suffix(name,    part) {
	if (split(name, part, ".") < 2)
		return ""
	return ", " (part[2] in way ? way[part[2]] : part[2])
}

function spread(n) {
	return milliseconds(median(n)) " (" milliseconds(value[1]) " to " milliseconds(value[n]) ")"
}

# With the largest number of clients.  In brackets how many times as fast the first one is.
function print_tasks(    i, j, n, c, ending, line, name, base, first) {
	for (i = 4; i <= n_words; i++)
		if (counts[word[i]] == "")
			tell_missing(word[i])
	find_columns()
	n = split("_1_on _20_on _1_off _20_off", ending, " ")
	first = word[4]
	sub(/_1_off$/, "", first)
	for (c = 1; c <= n_columns; c++) {
		if (c > 1)
			print ""
		print "| " grouped(column[c]) " waiting | one at a time, durable | 20 at a time, durable | one at a time, not durable | 20 at a time, not durable |"
		print "|---|---|---|---|---|"
		for (i = 4; i <= n_words; i++) {
			if (counts[word[i]] == "")
				continue
			base = word[i]
			sub(/_1_off$/, "", base)
			name = name_of(word[i])
			sub(/, .*/, "", name)
			line = "| " name " |"
			for (j = 1; j <= n; j++) {
				word[4] = first ending[j]
				line = line " " cell("compared", base ending[j], "", column[c]) " |"
			}
			word[4] = first "_1_off"
			print line
			rows++
		}
	}
}

function print_million() {
	print "| " grouped(million["leases"]) " leases | |"
	print "|---|---|"
	print "| shared memory of a lease, all counted | " million["bytes"] " bytes |"
	print "| leases that fit into `dlock.max_memory` = " grouped(million["memory"]) " kB | " grouped(million["capacity"]) " |"
	print "| size of `_dlock.store` on disk | " million["relation"] " MB |"
	print "| acquired by one session, 1000 in a call, `synchronous_commit` off | " seconds(million["fill"]) " s |"
	print "| first call after a restart, which loads them | " seconds(million["load"]) " s (" seconds(million["load_low"]) " to " seconds(million["load_high"]) ") |"
	rows++
}

# Of milliseconds.
function seconds(number) {
	return sprintf("%.2f", number / 1000)
}

function print_latencies(    i, part, name, base, count, n, line) {
	print "| | p50, ms | p99, ms |"
	print "|---|---|---|"
	for (i = 4; i <= n_words; i++) {
		count = split(word[i], part, ":") == 2 ? part[2] : 2
		name = part[1]
		base = name
		sub(/\..*/, "", base)
		n = collect_latencies(p50, name, count)
		if (n == 0)
			continue
		line = "| " name_of(base) suffix(name) " | " spread(n) " |"
		n = collect_latencies(p99, name, count)
		print line (name ~ /\.reaped$/ ? " |" : " " spread(n) " |")
		rows++
	}
}
