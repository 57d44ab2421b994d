/*
 * kernel_bench.h
 *	  `dsv3 bench kernels`.
 */
#ifndef DSV3_CLI_KERNEL_BENCH_H
#define DSV3_CLI_KERNEL_BENCH_H

extern int dsv3_kernel_bench(int argc, char **argv);

#endif /* DSV3_CLI_KERNEL_BENCH_H */
