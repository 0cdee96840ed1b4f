/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The commands, their options, and the help that is made of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "cli.h"

/* Commands as a set, to say which ones take an option. */
#define CMD_RUN			0x0001
#define CMD_ACQUIRE		0x0002
#define CMD_RENEW		0x0004
#define CMD_RELEASE		0x0008
#define CMD_STATUS		0x0010
#define CMD_WAIT		0x0020
#define CMD_FORCE		0x0040
#define CMD_ELECT		0x0080
#define CMD_WATCH		0x0100
#define CMD_CHECK		0x0400
#define CMD_PUT			0x0800
#define CMD_CAPTURE		0x1000
#define CMD_FINISH		0x2000
#define CMD_FAIL		0x4000
#define CMD_LIST		0x8000
#define CMD_ALL			0xFFFF

/* What to do with the running command when the lease is lost. */
typedef enum OptionsOnLost
{
	ON_LOST_KILL,
	ON_LOST_WARN
} OptionsOnLost;

typedef struct Command Command;

/* What was asked for.  Spans are negative, and texts NULL, if not given. */
typedef struct Options
{
	const Command *command;

	/* all commands */
	const char *conninfo;
	bool		json;
	bool		quiet;
	bool		verbose;

	/* the lease to acquire */
	CliTime		wait;			/* CLI_FOREVER: no limit */
	const char *mode;
	const char *permits;
	CliTime		ttl;
	const char *owner;
	CliTime		lock_delay;
	CliTime		min_hold;
	const char *payload;
	bool		path;
	int			refused_exit;

	/* the command to run */
	const char *shell;
	CliTime		kill_after;
	int			signal;
	OptionsOnLost on_lost;
	bool		no_tokens;
	CliTime		once_per;

	/* the task */
	const char *state;
	const char *priority;
	CliTime		delay;
	const char *error;

	/* others */
	const char *reason;
	bool		once;
	bool		observe;
	int			count;			/* negative: no limit */
	CliTime		watch;			/* from one table to the next */
} Options;

/* What carries a command out; "arguments" ends with NULL.  Returns an exit code. */
typedef int CommandRun(const Options *options, char **arguments);

struct Command
{
	const char *name;
	unsigned	bit;
	const char *arguments;		/* synopsis of what follows the options */
	const char *summary;		/* for the list of commands */
	const char *text;			/* for the help of this one, whole lines */
	int			least;			/* arguments that it takes */
	int			most;			/* negative: any number, and options end at
								 * the first */
	CommandRun *run;
};

/* In cmd_<name>.c, some of them together. */
extern CommandRun acquire, run_command, call_function, capture;
extern CommandRun show_status, wait_free, watch_holder, watch_leader;

extern int	options_parse(const Command *command, int argc, char **argv, Options *options);
extern void options_help(const Command *command);
extern int	options_usage(const Command *command);

#endif							/* OPTIONS_H */
