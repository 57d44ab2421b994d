#!/usr/bin/env python3
"""The strings on which tokenizers are compared: the same list everywhere, from a seed. Standard library only.

Characters come from fixed ranges and from what Unicode 3.2 had assigned (Python keeps that version's tables for good),
so neither the Python nor the Unicode version of the machine changes the list. Besides those there are private-use
characters and non-characters, whose class never changes. No surrogates: every string is valid UTF-8.

  make_strings.py          prints one JSON string per line
"""

import hashlib
import json
import sys
from unicodedata import ucd_3_2_0 as old_unicode

SEED = 7
RANDOM_LISTS = 1000
MASK = (1 << 64) - 1

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
           "<｜Assistant｜>", "<｜▁pad▁｜>", "<|EOT|>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "<think>", "</think>", "[BOS]",
           "[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[PAD]",
           "<file_sep>", "<repo_name>", "<｜place▁holder▁no▁7｜>", "<｜fim▁hole｜>"]

SCRIPTS = {  # letters one would see together, as (first, last) ranges
    "latin": [(0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A)], "latin1": [(0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0xFF), (0x61, 0x7A)],
    "latin_ext": [(0x100, 0x17F), (0x1E00, 0x1E9B)], "greek": [(0x391, 0x3A1), (0x3B1, 0x3C9)],
    "cyrillic": [(0x410, 0x44F), (0x400, 0x40F)], "armenian": [(0x531, 0x556), (0x561, 0x587)],
    "hebrew": [(0x5D0, 0x5EA), (0x5B0, 0x5B9)], "arabic": [(0x621, 0x63A), (0x641, 0x64A), (0x64B, 0x652)],
    "devanagari": [(0x905, 0x939), (0x93E, 0x94D)], "bengali": [(0x985, 0x98C), (0x9BE, 0x9C4)],
    "tamil": [(0xB85, 0xB8A), (0xBBE, 0xBC2), (0xB95, 0xB95)], "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E)],
    "lao": [(0xE94, 0xE97), (0xEC0, 0xEC4)], "tibetan": [(0xF40, 0xF47), (0xF71, 0xF7D)], "georgian": [(0x10D0, 0x10F6)],
    "ethiopic": [(0x1200, 0x1206), (0x1208, 0x1246)], "cherokee": [(0x13A0, 0x13F4)], "khmer": [(0x1780, 0x17B3), (0x17B6, 0x17D0)],
    "mongolian": [(0x1820, 0x1842)], "hiragana": [(0x3041, 0x3094)], "katakana": [(0x30A1, 0x30FA), (0x30FB, 0x30FE)],
    "han": [(0x4E00, 0x9FA5)], "han_ext": [(0x3400, 0x4DB5), (0x20000, 0x2A6D6)], "hangul": [(0xAC00, 0xD7A3)],
    "jamo": [(0x1100, 0x1159), (0x1161, 0x11A2)], "gothic": [(0x10330, 0x1034A)], "deseret": [(0x10400, 0x1044D)],
    "math": [(0x1D400, 0x1D454), (0x1D6A8, 0x1D6C9)], "fullwidth": [(0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0xFF10, 0xFF19)],
}
MARKS = [(0x300, 0x34F), (0x483, 0x486), (0x591, 0x5A1), (0x20D0, 0x20EA), (0xFE20, 0xFE23), (0x302A, 0x302F)]
EMOJI = [(0x1F600, 0x1F64F), (0x1F300, 0x1F320), (0x1F400, 0x1F43E), (0x2600, 0x2613), (0x1F680, 0x1F6A0)]
DIGITS = [(0x30, 0x39), (0x30, 0x39), (0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19), (0xB2, 0xB3), (0x2150, 0x215F),
          (0x2160, 0x2183), (0x2460, 0x249B), (0x3021, 0x3029)]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2003", "\u2009",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("¡¿«»§¶·“”‘’„…–—†‡•‰′″‹›€£¥¢©®™°±×÷←→∀∑√∞≤≥■●★♥、。「」『』・！？：；（）")
WORDS = ("the of and to in is that it was for on are as with they be at one have this from by hot word but what some we can out other "
         "were all there when up use your how said an each she which do their time if will way about many then them write would like "
         "so these her long make thing see him two has look more day could go come did number sound no most people my over know water "
         "than call first who may down side been now find any new work part take get place made live where after back little only "
         "round man year came show every good me give our under name very through just form sentence great think say help low line "
         "invoice customer server password printer refund delivery meeting contract address account database extension "
         "Rechnung Straße Grüße über zuständig Müller größer naïve café façade coöperate élève señor mañana señal").split()
ENDINGS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "’s", "’ll", "'x", "''s"]
CODE = ["def ", "return ", "if (", ") {", "}", ";\n", "    ", "\t", "for i in range(", "):\n", "int main(void)\n{\n", "SELECT * FROM ",
        " WHERE id = ", "==", "!=", "->", "=>", "::", "/* ", " */", "// ", "# ", "\\n", "\\u00e9", "0x1F", "1e-9", "a[i]", "&&", "||",
        "<div class=\"x\">", "</div>", "{\"a\": ", "null", "true", "_name_", "camelCase", "snake_case_name", "CONST_VALUE", "$var",
        "@decorator\n", "https://example.org/a?b=c&d=%20", "user@example.com", "\r\n", "\n\n\n"]


class Draw:
    """splitmix64 and what one draws from it."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.bits() % n

    def between(self, first, last):
        return first + self.below(last - first + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def char(self, ranges):
        first, last = self.pick(ranges)
        return chr(self.between(first, last))

    def some(self, least, most, make):
        return "".join(make() for _ in range(self.between(least, most)))


def assigned(code):
    return not 0xD800 <= code <= 0xDFFF and old_unicode.category(chr(code)) != "Cn"


def script_text(draw):
    """Words of one or a few scripts, with spaces, punctuation and digits between."""
    scripts = [SCRIPTS[draw.pick(sorted(SCRIPTS))] for _ in range(draw.between(1, 3))]
    out = []
    for _ in range(draw.between(1, 12)):
        ranges = draw.pick(scripts)
        out.append(draw.some(1, 9, lambda: draw.char(ranges)))
        out.append(draw.pick([" ", " ", " ", "", draw.pick(PUNCTUATION), draw.pick(SPACES), draw.char(DIGITS)]))
    return "".join(out)


def prose(draw):
    out = []
    for _ in range(draw.between(1, 30)):
        word = draw.pick(WORDS)
        word = draw.pick([word, word, word, word.capitalize(), word.upper()])
        if draw.below(8) == 0:
            word += draw.pick(ENDINGS)
        out.append(word + draw.pick([" ", " ", " ", " ", ", ", ". ", "\n", "-", " 4711 ", "! "]))
    return "".join(out)


def code(draw):
    return draw.some(1, 25, lambda: draw.pick([draw.pick(CODE), draw.pick(WORDS), str(draw.below(100000)), draw.pick(PUNCTUATION[:32])]))


def numbers(draw):
    return draw.some(1, 12, lambda: draw.pick([str(draw.bits() >> draw.below(64)), draw.some(1, 8, lambda: draw.char(DIGITS)), ".", ",",
                                               " ", "-", "e", "%", ":", "x"]))


def spaces(draw):
    return draw.some(1, 25, lambda: draw.pick([draw.pick(SPACES), draw.pick(SPACES), draw.pick(SPACES) * draw.between(1, 9), draw.pick(WORDS),
                                               draw.pick(PUNCTUATION), "7"]))


def cjk(draw):
    kinds = [SCRIPTS[name] for name in ("han", "hiragana", "katakana", "hangul", "han_ext", "fullwidth")]
    return draw.some(1, 30, lambda: draw.pick([draw.char(draw.pick(kinds)), draw.char(kinds[0]), draw.char(kinds[1]), draw.char(kinds[2]),
                                               draw.pick(list("、。「」・！？ー々〆〇～　 ,.1a\n"))]))


def emoji(draw):
    def one():
        base = draw.char(EMOJI)
        return draw.pick([base, base + "\ufe0f", base + chr(0x1F3FB + draw.below(5)), base + "\u200d" + draw.char(EMOJI),
                          chr(0x1F1E6 + draw.below(26)) + chr(0x1F1E6 + draw.below(26)), draw.pick("0123456789#*") + "\ufe0f\u20e3",
                          " " + base, draw.pick(WORDS), "\U0001F469\u200d\U0001F4BB"])
    return draw.some(1, 15, one)


def combining(draw):
    ranges = [SCRIPTS[name] for name in ("latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "thai", "hiragana")]
    return draw.some(1, 15, lambda: draw.pick([draw.char(draw.pick(ranges)), " ", "a", "7", "!", "\n", ""]) +
                     draw.some(0, 4, lambda: draw.char(MARKS)))


def controls(draw):
    return draw.some(1, 20, lambda: draw.pick([chr(draw.below(32)), chr(0x7F + draw.below(33)), "a", " ", "1", "\u200e", "\u202e", "\u2060",
                                               "\u00ad", "\u061c", "\ufff9"]))


def anything(draw):
    def one():
        while True:
            code = draw.pick([draw.below(0x3000), draw.below(0x10000), draw.below(0x110000)])
            if assigned(code):
                return chr(code)
    return draw.some(1, 25, one)


def unusual(draw):
    """Private use and non-characters."""
    return draw.some(1, 12, lambda: draw.pick([chr(draw.between(0xE000, 0xF8FF)), chr(draw.between(0xFDD0, 0xFDEF)), "\ufffe", "\uffff",
                                               "\U0001ffff", "\U000f0000", "\U0010ffff", "\ufffd", "a", " ", "1", "!"]))


def punctuation(draw):
    return draw.some(1, 25, lambda: draw.pick([draw.pick(PUNCTUATION), draw.pick(PUNCTUATION) * draw.between(1, 6), draw.pick(WORDS)[:3], " ",
                                               "\n", "\r\n", "7"]))


def special(draw):
    """Text that spells special tokens, whole, cut or nested."""
    def one():
        text = draw.pick(SPECIAL)
        cut = draw.below(len(text) + 1)
        return draw.pick([text, text, text, text[:cut], text[cut:], text[:cut] + text, draw.pick(WORDS), " ", "\n", "<", "|>"])
    return draw.some(1, 10, one)


def mixed(draw):
    makers = [script_text, prose, code, numbers, spaces, cjk, emoji, combining, punctuation]
    return "".join(draw.pick(makers)(draw) for _ in range(draw.between(2, 4)))


def run(draw):
    """One thing many times."""
    unit = draw.pick(["a", "A", " ", "\n", "\r\n", "\t", "7", "!", "=", "-", "ab", "a ", " a", "é", "の", "中", "😀", "\u0301", "\u00a0", "aB",
                      "'s", ".\n", "a1", draw.pick(WORDS), draw.pick(WORDS) + " ", "・日", "ก็", "_", "\u3000", "1,"])
    return draw.pick(["", "x", " "]) + unit * draw.between(20, 700) + draw.pick(["", "y", " ", "\n"])


def sweeps():
    """Every assigned character of the first three planes once (of the large scripts every 16th), between letters, digits,
    spaces and marks; 32 to a string."""
    large = [(0x3400, 0x4DB5), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x20000, 0x2A6D6)]
    parts = []
    for code in range(1, 0x30000):
        if assigned(code) and (code % 16 == 0 or not any(first <= code <= last for first, last in large)):
            parts.append(chr(code))
    strings = []
    for i in range(0, len(parts), 32):
        block = parts[i:i + 32]
        strings.append("".join("a%s" % c for c in block))
        strings.append("".join(" %s1" % c for c in block))
        strings.append("".join("%s%s!" % (c, c) for c in block))
    return strings


def make_strings():
    draw = Draw(SEED)
    strings = ["", " ", "\n", "\r\n", "a", "0", "\x00", "\u0301", "Hello!", "hello world", "  a  b  ", "\n\n a\n", "1234567890"]
    plan = [(script_text, 3400), (prose, 2000), (code, 1500), (numbers, 1000), (spaces, 1500), (cjk, 1600), (emoji, 1000),
            (combining, 1000), (controls, 700), (anything, 1500), (unusual, 300), (punctuation, 1200), (special, 1200), (mixed, 1200), (run, 250)]
    for maker, count in plan:
        strings += [maker(draw) for _ in range(count)]
    strings += sweeps()
    strings += ["a" * 30000, " " * 30000, "\n" * 5000, "word " * 6000, "7" * 3000, "中" * 4000, "x" + "\u0301" * 3000, "ab" * 20000]
    return strings


def random_ids(name, size):
    """Lists of 1 to 40 ids below `size`, to be decoded: any bytes come out, valid UTF-8 or not."""
    draw = Draw(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    return [[draw.below(size) for _ in range(draw.between(1, 40))] for _ in range(RANDOM_LISTS)]


def main():
    for text in make_strings():
        sys.stdout.write(json.dumps(text) + "\n")


if __name__ == "__main__":
    main()
