"""The Anthropic messages dialect and the content form (content.py): the client's side is in anthropic_prompt and anthropic_reply, the provider's in
anthropic_ask and anthropic_answer."""

from sluicegate.dialects.anthropic_answer import Pieces, read_reply
from sluicegate.dialects.anthropic_ask import write_prompt
from sluicegate.dialects.anthropic_prompt import read_prompt
from sluicegate.dialects.anthropic_reply import Writer, write_reply

__all__ = ["Pieces", "Writer", "read_prompt", "read_reply", "write_prompt", "write_reply"]
