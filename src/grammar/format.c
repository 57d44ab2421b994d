/*
 * format.c
 *	  The formats of strings, as regular expressions for our own compiler. Calendar dates are exact, leap years
 *	  included; where a format's lengths would need a large automaton (host names), a slightly smaller language is used.
 */
#include <string.h>

#include "grammar/ir.h"

#define YEAR "(?:\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                 \
	"(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"        \
	"02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define ZONE "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TIME                                                                                                 \
	"(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?" ZONE "|23:59:60(?:\\.\\d+)?(?:[Zz]|[+-]00:00))"
#define CLOCK "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define SHORT "[A-Za-z0-9](?:[A-Za-z0-9-]{0,22}[A-Za-z0-9])?"
#define HOST  "(?:" LABEL "(?:\\." LABEL "){0,2}|" SHORT "(?:\\." SHORT "){0,9})"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define V4    OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define H4    "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H4 ":" H4 "|" V4 ")"
#define V6                                                                                                   \
	"(?:(?:" H4 ":){6}" LS32 "|::(?:" H4 ":){5}" LS32 "|(?:" H4 ")?::(?:" H4 ":){4}" LS32 "|(?:(?:" H4       \
	":)?" H4 ")?::(?:" H4 ":){3}" LS32 "|(?:(?:" H4 ":){0,2}" H4 ")?::(?:" H4 ":){2}" LS32 "|(?:(?:" H4      \
	":){0,3}" H4 ")?::" H4 ":" LS32 "|(?:(?:" H4 ":){0,4}" H4 ")?::" LS32 "|(?:(?:" H4 ":){0,5}" H4          \
	")?::" H4 "|(?:(?:" H4 ":){0,6}" H4 ")?::)"
#define UNRES "A-Za-z0-9._~!$&'()*+,;="
#define PCHAR "(?:[" UNRES ":@-]|%[0-9A-Fa-f]{2})"
#define PATHQ "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define AUTH                                                                                                 \
	"//(?:(?:[" UNRES ":-]|%[0-9A-Fa-f]{2})*@)?(?:[" UNRES "-]|%[0-9A-Fa-f]{2})*(?::\\d*)?(?:/" PCHAR "*)*"
#define SCHEME "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTH "|/?(?:" PCHAR "+(?:/" PCHAR "*)*)?)" PATHQ
#define SEGNC  "(?:[" UNRES "@-]|%[0-9A-Fa-f]{2})+"

static const struct
{
	const char *name;
	const char *regex;
} formats[] = {
	{"date", "^" DATE "$"},
	{"time", "^" TIME "$"},
	{"date-time", "^" DATE "[Tt]" TIME "$"},
	{"duration", "^P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" CLOCK ")?|" CLOCK ")$"},
	{"email", "^(?=[!-?A-~]{1,64}@)" ATOM "(?:\\." ATOM ")*@" HOST "$"},
	{"hostname", "^" HOST "$"},
	{"ipv4", "^" V4 "$"},
	{"ipv6", "^" V6 "$"},
	{"uri", "^" SCHEME "$"},
	{"uri-reference", "^(?:" SCHEME "|(?:" AUTH "|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|(?:" SEGNC "(?:/" PCHAR
					  "*)*)?)" PATHQ ")$"},
	{"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
	{"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
};

static const char *
format_regex(const char *format)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (strcmp(formats[i].name, format) == 0)
			return formats[i].regex;
	return NULL;
}

bool
dsv3_format_known(const char *format)
{
	return format_regex(format) != NULL;
}

Pattern *
dsv3_format_pattern(Ir *ir, const char *format)
{
	const char *regex = format_regex(format);

	return dsv3_regex_compile(ir->ctx, regex, strlen(regex), true, false, false);
}
