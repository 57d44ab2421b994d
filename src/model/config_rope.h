/*
 * config_rope.h
 *	  The rotary part of a configuration; used by config.c only.
 */
#ifndef DSV3_CONFIG_ROPE_H
#define DSV3_CONFIG_ROPE_H

#include "model/config.h"
#include "model/json_file.h"

/*
 * Read the rope keys of the model's object and fill config->rope and config->softmax_scale. The sizes and max_positions
 * of *config are already set. False when reader has failed.
 */
extern bool dsv3_config_read_rope(Dsv3Config *config, Dsv3JsonReader *reader);

#endif /* DSV3_CONFIG_ROPE_H */
