/*
 * speculation.h
 *	  Whether drafting the token after the next one pays, from what steps and drafts have cost and how many drafts were right.
 *
 * With a draft a step computes two rows of a sequence instead of one and gives two tokens when the draft was right. That pays when the
 * share of right drafts is larger than the share of time by which the step becomes longer, the draft's own time included:
 * the bar. It depends on the model, the machine and the number of sequences, so it is measured all along, and from time to
 * time a few steps are made the other way to know what they would cost now. Answers do not depend on any of it.
 */
#ifndef DSV3_SPECULATION_H
#define DSV3_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum Dsv3SpeculationMode
{
	DSV3_SPECULATION_OFF,
	DSV3_SPECULATION_AUTO, /* where it pays */
	DSV3_SPECULATION_ON,   /* always */
} Dsv3SpeculationMode;

/* Rows of a step up to which times are kept; larger steps are not drafted for. */
#define DSV3_PACE_ROWS 128

typedef struct Dsv3Speculation
{
	Dsv3SpeculationMode mode;
	double step_us[DSV3_PACE_ROWS + 1];  /* running means of steps of so many rows; 0: never seen */
	double draft_us[DSV3_PACE_ROWS + 1]; /* of drafting for so many sequences */
	double right;                        /* of all drafts' outcomes, 1 or 0 */
	uint64_t turn;                       /* steps seen */
} Dsv3Speculation;

/* "off", "auto", "on"; false for anything else. */
extern bool dsv3_speculation_mode(const char *name, Dsv3SpeculationMode *mode);

extern void dsv3_speculation_init(Dsv3Speculation *speculation, Dsv3SpeculationMode mode);

/* A step without prompts took so long; so did drafting for n sequences. */
extern void dsv3_speculation_step(Dsv3Speculation *speculation, int64_t rows, uint64_t us);
extern void dsv3_speculation_drafts(Dsv3Speculation *speculation, int n, uint64_t us);

/* A draft was right or wrong; *right is the running mean of the sequence's own drafts, below 0 before the first. */
extern void dsv3_speculation_outcome(Dsv3Speculation *speculation, bool was_right, double *right);

/* Is a draft worth its time for a sequence with that mean, when the next step has n sequences in all? */
extern bool dsv3_speculation_pays(const Dsv3Speculation *speculation, int n, double right);

#endif /* DSV3_SPECULATION_H */
