/*-------------------------------------------------------------------------
 *
 * screen.h
 *	  The terminal as a screen.
 *
 * IDENTIFICATION
 *	  src/cli/screen.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef SCREEN_H
#define SCREEN_H

#include "text.h"

/* Keys; those that are characters stand for themselves. */
typedef enum ScreenKey
{
	SCREEN_NO_KEY = 0,
	SCREEN_SUSPEND = 0x1A,		/* control and z */
	SCREEN_UP = 256,
	SCREEN_DOWN,
	SCREEN_PAGE_UP,
	SCREEN_PAGE_DOWN,
	SCREEN_HOME,
	SCREEN_END,
	SCREEN_OTHER,
	SCREEN_GONE					/* there is no terminal any more */
} ScreenKey;

/* How text is written from here on. */
#define SCREEN_PLAIN	"\033[0m"
#define SCREEN_BOLD		"\033[1m"
#define SCREEN_DIM		"\033[2m"
#define SCREEN_REVERSE	"\033[7m"

extern bool screen_is_there(void);
extern bool screen_begin(void);
extern void screen_end(void);
extern void screen_enter(void);
extern void screen_suspend(void);
extern int	screen_fd(void);
extern void screen_size(int *columns, int *lines);
extern int	screen_key(void);
extern void screen_goto(Text *line, int column);
extern bool screen_show(const Text *lines, int count);

#endif							/* SCREEN_H */
