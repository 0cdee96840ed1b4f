/*-------------------------------------------------------------------------
 *
 * rows.c
 *	  Answers of the server as tables, or as JSON.
 *
 * IDENTIFICATION
 *	  src/cli/rows.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "output.h"
#include "rows.h"

#define TYPE_JSONB	3802		/* as in pg_type */

static const char *
cell(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : PQgetvalue(result, row, column);
}

static void
append_json(Text *to, const PGresult *result, const char *kind, const RowsColumn *columns, int ncolumns)
{
	for (int row = 0; row < PQntuples(result); row++)
	{
		output_json_begin(to);
		if (kind != NULL)
			output_json_text(to, "kind", kind);
		for (int i = 0; i < ncolumns; i++)
		{
			const char *value = cell(result, row, i);

			if (columns[i].raw)
				output_json_raw(to, columns[i].key, value);
			else
				output_json_text(to, columns[i].key, value);
		}
		output_json_end(to);
	}
}

static void
append_table(Text *to, const PGresult *result, const RowsColumn *columns, int ncolumns)
{
	int			nrows = PQntuples(result);
	OutputColumn *shown = text_alloc((size_t) ncolumns * sizeof(*shown));
	const char **cells = text_alloc((size_t) (nrows * ncolumns + 1) * sizeof(*cells));
	int			nshown = 0;

	for (int i = 0; i < ncolumns; i++)
	{
		OutputColumn column = {columns[i].title, columns[i].raw && PQftype(result, i) != TYPE_JSONB};

		if (column.title != NULL)
			shown[nshown++] = column;
	}
	for (int row = 0; row < nrows; row++)
	{
		int			at = 0;

		for (int i = 0; i < ncolumns; i++)
		{
			if (columns[i].title != NULL)
				cells[row * nshown + at++] = cell(result, row, i);
		}
	}
	output_table(to, shown, nshown, cells, nrows);
	free(cells);
	free(shown);
}

/*
 * Append an answer: as a table, or with --json as an object a row, which begins with
 * its kind (NULL: none).  Numbers are aligned to the right.
 */
void
rows_append(Text *to, const PGresult *result, const char *kind, const RowsColumn *columns, int ncolumns)
{
	if (output_is_json())
		append_json(to, result, kind, columns, ncolumns);
	else if (PQntuples(result) > 0)
		append_table(to, result, columns, ncolumns);
}

/* Print an answer to stdout. */
void
rows_print(const PGresult *result, const char *kind, const RowsColumn *columns, int ncolumns)
{
	Text		text;

	text_init(&text);
	rows_append(&text, result, kind, columns, ncolumns);
	fputs(text.data, stdout);
	text_free(&text);
}
