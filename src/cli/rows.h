/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  Answers of the server as tables, or as JSON.
 *
 * IDENTIFICATION
 *	  src/cli/rows.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ROWS_H
#define ROWS_H

#include "libpq-fe.h"


/* A column of an answer. */
typedef struct RowsColumn
{
	const char *key;			/* in JSON; in the answer, at the same place */
	const char *title;			/* in the table; NULL: not shown there */
	bool		raw;			/* JSON already: a number, a boolean, a jsonb */
} RowsColumn;

extern void rows_append(Text *to, const PGresult *result, const char *kind,
						const RowsColumn *columns, int ncolumns);
extern void rows_print(const PGresult *result, const char *kind,
					   const RowsColumn *columns, int ncolumns);

#endif							/* ROWS_H */
