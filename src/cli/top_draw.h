/*-------------------------------------------------------------------------
 *
 * top_draw.h
 *	  What dlock top shows, as lines.
 *
 * IDENTIFICATION
 *	  src/cli/top_draw.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef TOP_DRAW_H
#define TOP_DRAW_H

#include "top_look.h"

#define TOP_MAX_COLUMNS		9

/* A table keeps its columns where they are until the screen changes. */
typedef struct TopTable
{
	int			widths[TOP_MAX_COLUMNS];
} TopTable;

typedef struct TopView
{
	int			columns;		/* of the screen */
	int			lines;
	const char *title;			/* which server this is */
	const char *trouble;		/* NULL, or why what is shown is old */
	CliTime		interval;
	TopOrder	order;
	int			first;			/* the lease at the top */
	int			page;			/* out: how many leases are shown at a time */
	bool		help;			/* what keys do is shown, and no leases */
	TopTable	leases;
	TopTable	waiters;
} TopView;

extern void top_draw_screen(const TopLook *look, TopView *view, Text *lines);
extern void top_draw_plain(const TopLook *look, FILE *out);

#endif							/* TOP_DRAW_H */
