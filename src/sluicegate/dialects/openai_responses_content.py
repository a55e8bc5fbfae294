"""The OpenAI Responses dialect and the content form (content.py), on the client's side: see openai_responses_prompt and openai_responses_reply."""

from sluicegate.dialects.openai_responses_prompt import read_prompt
from sluicegate.dialects.openai_responses_reply import Writer, write_reply

__all__ = ["Writer", "read_prompt", "write_reply"]
