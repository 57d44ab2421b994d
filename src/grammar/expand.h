/*
 * expand.h
 *	  What the files that turn keywords into conditions share: expand.c (asserted schemas), deny.c (denied ones and
 *	  constants) and keywords.c (reading a keyword's value, adding a condition).
 */
#ifndef DSV3_GRAMMAR_EXPAND_H
#define DSV3_GRAMMAR_EXPAND_H

#include "grammar/ir.h"

/* keywords.c */
extern bool dsv3_kw_limit_of(Ir *ir, const Json *schema, const char *keyword, int32_t *out);
extern const char *dsv3_kw_string_of(Ir *ir, const Json *schema, const char *keyword, uint32_t *len);
extern const Json *
dsv3_kw_kind_of(Ir *ir, const Json *schema, const char *keyword, JsonKind kind, const char *what);
extern uint8_t dsv3_kw_types_of(Ir *ir, const Json *schema, bool *integer);
extern void dsv3_kw_number_bounds(Ir *ir, const Json *schema, NumSpec *spec);
extern const Json *dsv3_kw_multiple_of(Ir *ir, const Json *schema);
extern void dsv3_kw_add_grid(Ir *ir, Con *con, const Dec *step, bool negated);
extern void dsv3_kw_add_str_rule(Ir *ir, Con *con, const char *text, KeyPattern *pattern, bool negated);
extern void dsv3_kw_add_item_rule(Ir *ir, Con *con, int32_t from, int32_t to, int32_t lit);
extern void dsv3_kw_add_contains(Ir *ir, Con *con, int32_t from, int32_t lit, int32_t min, int32_t max);
extern KeyRule *dsv3_kw_key_rule(Ir *ir, KeyRule **list, int kind, int32_t lit);
extern void dsv3_kw_add_name_rule(Ir *ir, Con *con, const char *name, uint32_t len, int32_t lit);
extern void dsv3_kw_pattern_at(Ir *ir, const Json *schema, const char *keyword);
extern const Json *dsv3_kw_tuple_of(const Json *schema, const Json **rest, const char **rest_keyword);
extern void dsv3_kw_check_tuple(Ir *ir, const Json *schema, const Json *prefix);
extern void dsv3_kw_declared_keys(Ir *ir, const Json *schema, Name **names, PatternList **patterns);
extern Name *dsv3_kw_reverse_names(Name *names);
extern Name *dsv3_kw_order_of(Ir *ir, const Json *schema);

/* expand.c */
extern const char *const dsv3_reference_keywords[3];
extern Con *dsv3_ir_copy_list(Ir *ir, const Con *list);
extern Con *dsv3_ir_anything(Ir *ir);

/* deny.c */
extern Con *dsv3_ir_deny_schema(Ir *ir, const Json *schema, int32_t env);
extern Con *dsv3_ir_deny_value(Ir *ir, const Json *value);

#endif /* DSV3_GRAMMAR_EXPAND_H */
