/*
 * quant.h
 *	  The packed weight types: INT8 (int8.h), and the group types A4 and S6 with the activations they are multiplied by.
 *
 * A packed matrix is panels of 16 rows, one after another; a panel is blocks of 128 columns, the last may be shorter, and one
 * such panel serves 16 outputs that need no horizontal sum. Rows that do not exist count as zero. Every part
 * is a multiple of 64 bytes, and a panel starts on 64 bytes if the matrix does.
 *
 * A4, 4.5 bits a weight: groups of 32 columns; w = row scale * (scale * code + 8 * min), code 0..15, scale 0..255, min
 * -128..127. A block is, for each group, 4 lines of 64 bytes, one for 8 columns k..k+7: byte 4 r + j holds the codes of
 * row r at columns k+j (low half) and k+4+j (high half); then 64 bytes of scales, byte 16 g + r; then 64 bytes of minima,
 * byte 32 (g / 2) + 2 r + g mod 2.
 *
 * S6, 6.5 bits a weight: groups of 16 columns; w = row scale * scale * (code - 32), code 0..63, scale 0..255. A block is,
 * for each group, 2 lines of low halves as in A4; then a line of high bits, byte 4 r + j holding those of row r at columns
 * j, 4+j, 8+j, 12+j from its lowest bits up; then 128 bytes of scales, byte 16 g + r.
 *
 * Both: a short block has its columns filled up to a multiple of 32 with columns that are not there; the scales and
 * minima have their full size. After the blocks a panel has 16 row scales, F32.
 *
 * Activations of A4 and S6 are 8-bit codes -127..127 with one F32 scale for 128 columns, absmax / 127, by the rule of
 * int8.h. Columns that are not there have code 0, so whatever the weight's codes say there adds nothing. A code block
 * carries, beside the codes, the sums that stand in for the constant parts of the weights.
 */
#ifndef DSV3_QUANT_H
#define DSV3_QUANT_H

#include "kernels/int8.h"
#include "kernels/ops.h"

#define DSV3_PANEL_ROWS 16
#define DSV3_BLOCK      128 /* columns */
#define DSV3_UNIT       32  /* columns of a short block come in units */
#define DSV3_A4_GROUP   32
#define DSV3_S6_GROUP   16
#define DSV3_A4_UNIT    256 /* bytes of codes for a unit of a panel */
#define DSV3_S6_UNIT    384
#define DSV3_BLOCK_TAIL 128 /* bytes of scales and minima */

/* 128 activations of a row. */
struct Dsv3CodeBlock
{
	int8_t codes[DSV3_BLOCK];
	/* S6: -32 * sum of the codes of a group's columns k with k mod 4 in {0, 1}; {2, 3} */
	int16_t start[DSV3_BLOCK / DSV3_S6_GROUP][2];
	int16_t sum[DSV3_BLOCK / DSV3_A4_GROUP]; /* A4: 8 * sum of a group's codes */
	float scale;
	uint32_t unused;
};
_Static_assert(sizeof(Dsv3CodeBlock) == 176, "code blocks are addressed by the kernels");

/* Code blocks of a row of n columns. */
static inline int
dsv3_code_blocks(int n)
{
	return (n + DSV3_BLOCK - 1) / DSV3_BLOCK;
}

static inline bool
dsv3_type_is_packed(Dsv3Type type)
{
	return type >= DSV3_TYPE_INT8;
}

/* Bytes of one panel of a packed type with `in` columns. */
extern size_t dsv3_panel_bytes(Dsv3Type type, int32_t in);

/* Bytes of a packed [out, in] matrix. */
extern size_t dsv3_packed_bytes(Dsv3Type type, int32_t out, int32_t in);

/*
 * Quantise rows first .. first + n - 1 of src (any type that is not packed) into panels at dst, which holds
 * dsv3_packed_bytes(type, n, src->in) bytes, all written; first is a multiple of 16, so that the ranges of a matrix
 * lie one after another. Scales are searched for the least squared error; importance [in] or NULL weighs the squares of the
 * columns of A4 and S6 (mean squares of the inputs are what it is meant for; not negative). A weight of A4 or S6
 * that is not below 2^60 in magnitude counts as 0. The result depends on nothing but the arguments. False when there is no memory for one row.
 */
extern bool dsv3_pack_rows(Dsv3Type type, const Dsv3Weight *src, int32_t first, int32_t n,
						   const float *importance, void *dst);

/* One row of a packed matrix as w->in floats: what the products compute with, each rounded once. */
extern void dsv3_unpack_row(const Dsv3Weight *w, int32_t row, float *y);

/* The exact parts of one weight of an A4 or S6 matrix: row_scale * (scale * code + offset). For oracles. */
typedef struct Dsv3Quant
{
	int32_t code;   /* 0..15, or -32..31 */
	int32_t scale;  /* of the group */
	int32_t offset; /* A4: 8 * min; S6: 0 */
	float row_scale;
} Dsv3Quant;

extern Dsv3Quant dsv3_quant_at(const Dsv3Weight *w, int32_t row, int32_t column);

#endif /* DSV3_QUANT_H */
