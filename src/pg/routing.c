/*
 * routing.c
 *	  dsv3_routing_html(): which experts the tokens of a prompt go to, as a page for a browser.
 *
 * The page holds its data as JSON and draws it itself; it loads nothing and its policy forbids it to. The texts of tokens come from the
 * prompt and are hostile: in the data no "<" is left, so they cannot end the element, and the page only ever shows them as text.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "pg/answer.h"
#include "pg/client.h"
#include "pg/options.h"

PG_FUNCTION_INFO_V1(dsv3_routing_html_1_0);

static const char before_data[] =
	"<!DOCTYPE html>\n"
	"<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Expert routing</title>\n"
	"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
	"script-src 'unsafe-inline'\">\n"
	"<style>\n"
	"body { font: 14px sans-serif; margin: 1.5em; }\n"
	"table { border-collapse: collapse; }\n"
	"td, th { border: 1px solid #ddd; padding: 2px 5px; text-align: right; white-space: pre; }\n"
	"th { background: #f4f4f4; font-weight: normal; }\n"
	"#map td { padding: 0; width: 12px; height: 14px; }\n"
	"#map tr { cursor: pointer; }\n"
	"#map tr.shown th { background: #cde; }\n"
	"</style></head><body>\n"
	"<h1>Expert routing</h1>\n"
	"<p>Layer <select id=\"layer\"></select>. A row is a token, a column an expert; the darker, the higher "
	"the "
	"router's score. A click shows a token in all layers.</p>\n"
	"<table id=\"map\"></table>\n"
	"<h2 id=\"title\"></h2>\n"
	"<table id=\"detail\"></table>\n"
	"<script type=\"application/json\" id=\"data\">";

static const char after_data[] =
	"</script>\n"
	"<script>\n"
	"'use strict';\n"
	"const data = JSON.parse(document.getElementById('data').textContent);\n"
	"const layer = document.getElementById('layer'), map = document.getElementById('map');\n"
	"const detail = document.getElementById('detail'), title = document.getElementById('title');\n"
	"let shown = 0;\n"
	"function cell(row, kind, text) {\n"
	"\tconst made = document.createElement(kind);\n"
	"\tmade.textContent = text;\n"
	"\trow.append(made);\n"
	"\treturn made;\n"
	"}\n"
	"function drawMap() {\n"
	"\tconst chosen = data.layers[layer.selectedIndex].chosen;\n"
	"\tconst most = Math.max(...chosen.flat().map(c => c[1]));\n"
	"\tmap.replaceChildren();\n"
	"\tdata.tokens.forEach((token, i) => {\n"
	"\t\tconst row = map.insertRow(), scores = new Map(chosen[i].map(c => [c[0], c]));\n"
	"\t\trow.className = i === shown ? 'shown' : '';\n"
	"\t\trow.onclick = () => { shown = i; draw(); };\n"
	"\t\tcell(row, 'th', token);\n"
	"\t\tfor (let expert = 0; expert < data.experts; expert++) {\n"
	"\t\t\tconst made = cell(row, 'td', ''), c = scores.get(expert);\n"
	"\t\t\tif (!c) continue;\n"
	"\t\t\tmade.className = 'chosen';\n"
	"\t\t\tmade.style.background = `rgba(190, 80, 0, ${0.2 + 0.8 * c[1] / most})`;\n"
	"\t\t\tmade.title = `expert ${expert}: ${c[1].toFixed(4)}, with bias ${c[2].toFixed(4)}`;\n"
	"\t\t}\n"
	"\t});\n"
	"}\n"
	"function drawDetail() {\n"
	"\ttitle.textContent = `Token ${shown + 1}: expert, score, score with bias`;\n"
	"\tdetail.replaceChildren();\n"
	"\tfor (const l of data.layers) {\n"
	"\t\tconst row = detail.insertRow();\n"
	"\t\tcell(row, 'th', `layer ${l.layer}`);\n"
	"\t\tfor (const [expert, score, biased] of l.chosen[shown])\n"
	"\t\t\tcell(row, 'td', `${expert}\\n${score.toFixed(4)}\\n${biased.toFixed(4)}`);\n"
	"\t}\n"
	"}\n"
	"function draw() { drawMap(); drawDetail(); }\n"
	"for (const l of data.layers) layer.add(new Option(l.layer));\n"
	"layer.onchange = drawMap;\n"
	"draw();\n"
	"</script></body></html>\n";

/* dsv3_routing_html(prompt, system, options) -> text */
Datum
dsv3_routing_html_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	StringInfoData page;
	Size total = 0;
	Datum json;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_ROUTING);
	request.function = "dsv3_routing_html";
	if (!PG_ARGISNULL(2))
		dsv3_options_apply(&request, PG_GETARG_JSONB_P(2), DSV3_OPTIONS_PIN);
	if (!dsv3_take_text(PG_GETARG_DATUM(0), &request.prompt, &total, &failure) ||
		(!PG_ARGISNULL(1) && !dsv3_take_text(PG_GETARG_DATUM(1), &request.system, &total, &failure)) ||
		!dsv3_run(&request, &answer, &failure) || !dsv3_answer_text(&answer, &json, &failure))
		dsv3_raise(&failure);
	initStringInfo(&page);
	appendStringInfoString(&page, before_data);
	for (const char *at = TextDatumGetCString(json); *at; at++)
	{
		if (*at == '<')
			appendStringInfoString(&page, "\\u003c");
		else
			appendStringInfoChar(&page, *at);
	}
	appendStringInfoString(&page, after_data);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(page.data, page.len));
}
