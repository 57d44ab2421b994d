/*
 * speculation.c
 *	  The measure of whether drafts pay; see speculation.h.
 */
#include "engine/speculation.h"

#include <stddef.h>
#include <string.h>

/* Of so many steps two are made without drafts and two with, whatever the bar says. */
#define ROUND_STEPS 64
#define TRIED_STEPS 2

#define TIME_WEIGHT (1.0 / 8)
#define ALL_WEIGHT  (1.0 / 64)
#define OWN_WEIGHT  (1.0 / 8)

bool
dsv3_speculation_mode(const char *name, Dsv3SpeculationMode *mode)
{
	static const char *const names[] = {"off", "auto", "on"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		if (strcmp(name, names[i]) == 0)
		{
			*mode = (Dsv3SpeculationMode) i;
			return true;
		}
	}
	return false;
}

void
dsv3_speculation_init(Dsv3Speculation *speculation, Dsv3SpeculationMode mode)
{
	*speculation = (Dsv3Speculation){.mode = mode, .right = 1.0};
}

static void
take_mean(double *mean, double value)
{
	*mean += *mean == 0.0 ? value : (value - *mean) * TIME_WEIGHT;
}

void
dsv3_speculation_step(Dsv3Speculation *speculation, int64_t rows, uint64_t us)
{
	speculation->turn++;
	if (rows <= DSV3_PACE_ROWS)
		take_mean(&speculation->step_us[rows], (double) us + 1.0);
}

void
dsv3_speculation_drafts(Dsv3Speculation *speculation, int n, uint64_t us)
{
	if (n <= DSV3_PACE_ROWS)
		take_mean(&speculation->draft_us[n], (double) us + 1.0);
}

void
dsv3_speculation_outcome(Dsv3Speculation *speculation, bool was_right, double *right)
{
	double outcome = was_right ? 1.0 : 0.0;

	if (*right < 0.0)
		*right = speculation->right;
	*right += (outcome - *right) * OWN_WEIGHT;
	speculation->right += (outcome - speculation->right) * ALL_WEIGHT;
}

bool
dsv3_speculation_pays(const Dsv3Speculation *speculation, int n, double right)
{
	uint64_t at = speculation->turn % ROUND_STEPS;
	double alone, both;

	if (speculation->mode != DSV3_SPECULATION_AUTO)
		return speculation->mode == DSV3_SPECULATION_ON;
	if (n < 1 || 2 * n > DSV3_PACE_ROWS)
		return false;
	alone = speculation->step_us[n];
	if (alone == 0.0 || at < TRIED_STEPS)
		return false;
	if (speculation->step_us[2 * n] == 0.0 || speculation->draft_us[n] == 0.0 ||
		(at >= ROUND_STEPS / 2 && at < ROUND_STEPS / 2 + TRIED_STEPS))
		return true;
	both = speculation->step_us[2 * n] + speculation->draft_us[n];
	return alone * (1.0 + (right < 0.0 ? speculation->right : right)) > both;
}
