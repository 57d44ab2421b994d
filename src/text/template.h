/*
 * template.h
 *	  Chat templates: messages in, prompt ids out.
 *
 * The checkpoint's own chat_template is run by the interpreter of jinja.h, which tells for every byte of the prompt
 * whether it came from the template or from a message. What came from the template may be control tokens; what a user
 * wrote is encoded as plain text, so a message that contains the text of a special token stays text. Text between two
 * control tokens is encoded as one run, so ids equal Hugging Face's for messages without special text. The kind of the
 * template, known by its characteristic parts, says how thinking and tool calls look in an answer.
 */
#ifndef DSV3_TEMPLATE_H
#define DSV3_TEMPLATE_H

#include "text/tokenizer.h"

typedef enum Dsv3TemplateKind
{
	DSV3_TEMPLATE_NONE,    /* unknown: only raw prompts are possible */
	DSV3_TEMPLATE_V3,      /* DeepSeek-V3, V3-0324 */
	DSV3_TEMPLATE_R1,      /* DeepSeek-R1, R1-Zero: opens <think> itself */
	DSV3_TEMPLATE_R1_0528, /* DeepSeek-R1-0528 */
	DSV3_TEMPLATE_V31,     /* DeepSeek-V3.1, V3.1-Terminus: thinking on or off */
	DSV3_TEMPLATE_V2,      /* DeepSeek-V2, V2-Lite chat */
	DSV3_TEMPLATE_MOONLIGHT,
	DSV3_TEMPLATE_KIMI_K2,
	DSV3_TEMPLATE_CHATML, /* the demo model: <|im_start|>role\n...<|im_end|>\n */
} Dsv3TemplateKind;

typedef enum Dsv3Think
{
	DSV3_THINK_AUTO, /* the checkpoint's default */
	DSV3_THINK_OFF,
	DSV3_THINK_ON,
} Dsv3Think;

typedef struct Dsv3Template
{
	Dsv3TemplateKind kind;
	const char *name;     /* "deepseek-v3", "chatml", ... */
	char *default_system; /* inserted when the first message is not a system message, or NULL; owned */
	const Dsv3Tokenizer *tokenizer;
	struct Dsv3Jinja *program; /* the checkpoint's chat_template, compiled; NULL with DSV3_TEMPLATE_NONE */
	char *bos; /* texts of the tokens the template calls bos_token and eos_token, or NULL; owned */
	char *eos;
	bool takes_tools; /* the template declares tools itself */
	bool takes_calls; /* the template renders tool calls and their results */
	bool can_think;
	bool always_thinks;
	bool opens_think[3]; /* by Dsv3Think: the generation prompt ends inside the thinking part */
	char reason[200];    /* why the kind is DSV3_TEMPLATE_NONE */
} Dsv3Template;

/* Select the template of a model directory. Succeeds with DSV3_TEMPLATE_NONE for an unknown template; fails only on
 * unreadable files. */
extern bool
dsv3_template_open(Dsv3Template *tmpl, const char *model_dir, const Dsv3Tokenizer *tokenizer, Dsv3Error *err);
extern void dsv3_template_close(Dsv3Template *tmpl);

/*
 * Render an OpenAI-shaped message array (JSON text: [{"role":"user","content":"..."}, ...]; roles system, user,
 * assistant with optional tool_calls and reasoning_content, tool with tool_call_id; content a string, null, or an array
 * of {"type":"text","text":...}) followed by the generation prompt, and append the ids to *out. tools_json is NULL or a JSON array of
 * OpenAI tool definitions; a template without tool support refuses them with 0A000. A bad shape fails with 22023 and
 * says which message. With DSV3_TEMPLATE_NONE fails with 0A000 and a hint to use raw prompts.
 */
extern bool dsv3_template_render(const Dsv3Template *tmpl, const char *messages_json, size_t messages_len,
								 const char *tools_json, size_t tools_len, Dsv3Think think, size_t max_tokens,
								 Dsv3Tokens *out, Dsv3Error *err);

/* A raw prompt: BOS when the tokenizer adds one, then the text as plain text. */
extern bool dsv3_template_raw(const Dsv3Template *tmpl, const char *text, size_t len, size_t max_tokens,
							  Dsv3Tokens *out, Dsv3Error *err);

/*
 * Split a finished answer (decoded with control tokens kept) into its parts: the thinking text, the visible content and
 * tool calls as an OpenAI-shaped JSON array. Each output is appended as UTF-8 text; an empty one means absent.
 * generation_opens_think: the generation prompt already opened the thinking part.
 */
extern bool dsv3_template_parse_answer(const Dsv3Template *tmpl, const char *answer, size_t len,
									   bool generation_opens_think, Dsv3Text *reasoning, Dsv3Text *content,
									   Dsv3Text *tool_calls_json, Dsv3Error *err);

/* Does the generation prompt for this think setting open the thinking part? */
extern bool dsv3_template_opens_think(const Dsv3Template *tmpl, Dsv3Think think);

#endif /* DSV3_TEMPLATE_H */
