"""Whether a request leaves all output to be seen, where the provider shows all: a client must not be able to take that back.

An operator, or a provider's row, states that every token that is billed is in the stream; on that the hold of an extended stream grows. Servers have
fields by which a client hides some of it (vLLM: `include_reasoning: false`; OpenRouter: `reasoning.exclude`; Anthropic: `thinking.display`), and get
new ones. So it is not known fields that are distrusted but all others: a request with any field beside these is held as a cap, which
needs no sight of the output.
"""

from collections.abc import Mapping

from msgspec import Raw

# Whose values steer what is said, not what of it is shown. Names are those of OpenAI's API, vLLM and llama.cpp. Not among them: what can make a model
# say special tokens, which are billed and shown as nothing (`logit_bias`, `ignore_eos`, `allowed_token_ids`).
_STEERING = frozenset((
    "bad_words", "best_of", "cache_prompt", "cache_salt", "chat_template_kwargs", "disable_fallbacks", "dry_allowed_length", "dry_base",
    "dry_multiplier", "echo",
    "frequency_penalty", "function_call", "functions", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "id_slot",
    "input", "instructions", "json_schema", "length_penalty", "logprobs", "max_completion_tokens", "max_new_tokens", "max_output_tokens",
    "max_tokens", "max_tool_calls", "messages", "metadata", "min_p", "min_tokens", "mirostat", "mirostat_eta", "mirostat_tau", "modalities",
    "model", "n", "n_cmpl", "n_predict", "output_config", "parallel_tool_calls", "prediction", "presence_penalty", "priority", "prompt",
    "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "repeat_last_n", "repeat_penalty", "repetition_penalty",
    "response_format", "safety_identifier", "seed", "service_tier", "stop", "stop_sequences", "stop_token_ids", "store", "stream",
    "stream_options", "structured_outputs", "suffix", "system", "temperature", "text", "tool_choice", "tools", "top_k", "top_logprobs",
    "top_p", "truncation", "typical_p", "user", "verbosity",
))  # fmt: skip
_NOT_SAID = (b"null", b"{}")


def shows_all(fields: Mapping[str, Raw]) -> bool:
    """Whether none of a body's fields may keep output from being shown."""
    return fields.keys() <= _STEERING or all(name in _STEERING or bytes(raw) in _NOT_SAID for name, raw in fields.items())
