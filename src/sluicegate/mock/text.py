"""Words of which each is exactly one token of o200k_base (and cl100k_base), in any order, so that a gateway that counts with a tokenizer
must come to what the mock produced. A test checks that.
"""

import math

# Frequent English words, each with the space before it.
_TEXT = """the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what all were we when
your can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has
look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made"""
WORDS = tuple(" " + word for word in _TEXT.split())
DENSE = "県態纵伯"  # one token each, together too


def words(start: int, tokens: int, word: str, dense: bool) -> str:
    """Text of so many tokens, from the `start`th on."""
    if word:
        return word * tokens
    source: tuple[str, ...] | str = DENSE if dense else WORDS
    size = len(source)
    return "".join([source[i % size] for i in range(start, start + tokens)])


def prompt_tokens(texts: list[str], messages: int, tokenizer: str) -> int:
    """Tokens of a prompt: its texts, and where messages frame them 4 for each and 3 that prime the answer."""
    if tokenizer:
        from sluicegate.core.meter import count  # noqa: PLC0415  (vocabularies take half a second to import, and few calls ask for one)

        content = sum(count(text, tokenizer) for text in texts)
    else:
        content = math.ceil(sum(map(len, texts)) / 4)
    return content + (4 * messages + 3 if messages else 0)
