/*-------------------------------------------------------------------------
 *
 * commands.h
 *	  The commands, one in each cmd_<name>.c.
 *
 * IDENTIFICATION
 *	  src/cli/commands.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef COMMANDS_H
#define COMMANDS_H

#include "options.h"

extern const Command cmd_run;
extern const Command cmd_acquire;
extern const Command cmd_renew;
extern const Command cmd_release;
extern const Command cmd_check;
extern const Command cmd_status;
extern const Command cmd_wait;
extern const Command cmd_watch;
extern const Command cmd_force_release;
extern const Command cmd_elect;
extern const Command cmd_task_put;
extern const Command cmd_task_capture;
extern const Command cmd_task_finish;
extern const Command cmd_task_fail;
extern const Command cmd_task_list;

#endif							/* COMMANDS_H */
