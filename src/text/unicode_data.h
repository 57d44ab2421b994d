/*
 * unicode_data.h
 *	  What the pre-tokenizers need to know of Unicode 16: general categories and the Han script.
 *
 * PCRE2's own tables follow the version of the system's library (Debian 12: Unicode 14), the tokenizers' follow theirs;
 * ids must not depend on the former, so the engine carries the latter.
 */
#ifndef DSV3_UNICODE_DATA_H
#define DSV3_UNICODE_DATA_H

#include <stdint.h>

#define DSV3_CODE_POINTS 0x110000u

typedef enum Dsv3Category
{
	DSV3_CAT_LU,
	DSV3_CAT_LL,
	DSV3_CAT_LT,
	DSV3_CAT_LM,
	DSV3_CAT_LO,
	DSV3_CAT_MN,
	DSV3_CAT_MC,
	DSV3_CAT_ME,
	DSV3_CAT_ND,
	DSV3_CAT_NL,
	DSV3_CAT_NO,
	DSV3_CAT_PC,
	DSV3_CAT_PD,
	DSV3_CAT_PS,
	DSV3_CAT_PE,
	DSV3_CAT_PI,
	DSV3_CAT_PF,
	DSV3_CAT_PO,
	DSV3_CAT_SM,
	DSV3_CAT_SC,
	DSV3_CAT_SK,
	DSV3_CAT_SO,
	DSV3_CAT_ZS,
	DSV3_CAT_ZL,
	DSV3_CAT_ZP,
	DSV3_CAT_CC,
	DSV3_CAT_CF,
	DSV3_CAT_CS,
	DSV3_CAT_CO,
	DSV3_CAT_CN,
	DSV3_CATEGORIES
} Dsv3Category;

extern const uint32_t dsv3_unicode_runs[]; /* first code point << 8 | category, ascending */
extern const int dsv3_unicode_runs_count;
extern const uint32_t dsv3_unicode_han[]; /* first, last, first, last ... */
extern const int dsv3_unicode_han_count;

#endif /* DSV3_UNICODE_DATA_H */
