/*
 * determinism.h
 *	  `dsv3 bench determinism`.
 */
#ifndef DSV3_CLI_DETERMINISM_H
#define DSV3_CLI_DETERMINISM_H

extern int dsv3_determinism_bench(int argc, char **argv);

#endif /* DSV3_CLI_DETERMINISM_H */
