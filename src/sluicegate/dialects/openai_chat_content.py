"""The OpenAI chat dialect and the content form (content.py): the client's side is in openai_chat_prompt and openai_chat_reply, the provider's in
openai_chat_ask and openai_chat_answer."""

from sluicegate.dialects.openai_chat_answer import Pieces, read_reply
from sluicegate.dialects.openai_chat_ask import write_prompt
from sluicegate.dialects.openai_chat_prompt import read_prompt
from sluicegate.dialects.openai_chat_reply import Writer, write_reply

__all__ = ["Pieces", "Writer", "read_prompt", "read_reply", "write_prompt", "write_reply"]
