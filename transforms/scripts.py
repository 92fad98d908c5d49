"""In which script a token is written. Pure; imports unicodedata only.

Python has no property for it, but the names of letters begin with it: LATIN SMALL LETTER A, CYRILLIC …, CJK UNIFIED ….
"""

import unicodedata
from functools import cache

OF_LANGUAGE = {
    **dict.fromkeys(("English", "Portuguese", "German", "French", "Spanish", "Italian", "Dutch", "Catalan"), ("LATIN",)),
    **dict.fromkeys(("Russian", "Ukrainian", "Bulgarian"), ("CYRILLIC",)),
    "Greek": ("GREEK",),
    "Arabic": ("ARABIC",),
    "Hebrew": ("HEBREW",),
    "Chinese": ("CJK",),
    "Japanese": ("CJK", "HIRAGANA", "KATAKANA"),
    "Korean": ("HANGUL", "CJK"),
}


def script_of(token: str) -> str:
    """The script of the first letter of ``token``, such as "LATIN"; "" for one without letters."""
    if token.isascii():
        return "LATIN" if any(map(str.isalpha, token)) else ""
    return next((script for script in map(_of_character, token) if script), "")


@cache
def _of_character(character: str) -> str:
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0]
