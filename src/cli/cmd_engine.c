/*
 * cmd_engine.c
 *	  `dsv3 engine`: the engine process of a PostgreSQL server. The supervisor starts it with a stream socket as descriptor 3.
 */
#include "cli/cli.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "engine/process.h"

#define SOCKET_FD 3

static void
print_help(void)
{
	printf("Usage: dsv3 engine [--parent PID] [--debug]\n\n"
		   "Serves a model to a PostgreSQL server over the socket on descriptor 3. The server starts it; "
		   "there is\n"
		   "nothing to do with it by hand ('dsv3 generate' answers a prompt).\n\n"
		   "  --parent PID  exit unless PID is the parent process\n"
		   "  --debug       leave crashes and core dumps to the system\n");
}

int
dsv3_cmd_engine(int argc, char **argv)
{
	static const struct option options[] = {{"parent", required_argument, NULL, 'p'},
											{"debug", no_argument, NULL, 'd'},
											{"help", no_argument, NULL, 'h'},
											{NULL, 0, NULL, 0}};
	struct stat st;
	long parent = 0;
	bool debug = false;
	char *end;
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (option)
		{
			case 'p':
				parent = strtol(optarg, &end, 10);
				if (*end || parent <= 0)
					return dsv3_cli_usage("engine", "--parent must be a process id");
				break;
			case 'd':
				debug = true;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				return dsv3_cli_usage("engine", "bad option \"%s\"", argv[optind - 1]);
		}
	}
	if (optind < argc)
		return dsv3_cli_usage("engine", "unexpected argument \"%s\"", argv[optind]);
	if (fstat(SOCKET_FD, &st) != 0 || !S_ISSOCK(st.st_mode))
		return dsv3_cli_usage("engine", "descriptor %d is not a socket", SOCKET_FD);
	dsv3_engine_serve(SOCKET_FD, (pid_t) parent, debug);
}
