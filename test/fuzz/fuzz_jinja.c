/*
 * fuzz_jinja.c
 *	  Any bytes as a chat template: compiled, and when that works rendered with a conversation.
 *
 * Run: make fuzz FUZZ=jinja SECONDS=60
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": "
								"\"user\", \"content\": \"u<x>\\u00e9\"},"
								" {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": "
								"\"a\", \"function\": {\"name\": \"f\","
								" \"arguments\": \"{}\"}}]}], \"tools\": [{\"a\": [1, 2.5, true]}], "
								"\"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Dsv3Error err = {.sqlstate = ""};
	Dsv3Jinja *program = dsv3_jinja_compile((const char *) data, size, &err);
	Dsv3Pool pool = {.limit = 16 << 20};
	Dsv3Rendered rendered;
	json_t *json;

	if (program == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	json = json_loads(variables, 0, NULL);
	if (dsv3_jinja_render(program, &pool, dsv3_value_from_json(&pool, json), &rendered, &err))
	{
		for (size_t i = 0; i < rendered.len; i++)
		{
			if (rendered.from_user[i] > 1)
				abort();
		}
	}
	else if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
		abort();
	json_decref(json);
	dsv3_pool_free(&pool);
	dsv3_jinja_free(program);
	return 0;
}
