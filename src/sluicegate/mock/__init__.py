"""A mock upstream that knows the truth: an OpenAI-like server that counts what it really produced, per caller.

For tests, demonstrations and load: `run_mock` is a process, `Mock` runs inside a loop. docs/mock.md lists what it can be told to do.

    options    how it answers: standing options, overrides of one request, faults for the next calls
    text       words of which each is exactly one token
    answers    what one call is answered, as events with the tokens that each of them produces (pure)
    truth      the count
    server     HTTP, and one timer for all streams
"""

from sluicegate.mock.options import MockOptionError, MockOptions, from_mapping
from sluicegate.mock.server import Mock, run_mock
from sluicegate.mock.truth import Tally, Truth

__all__ = ["Mock", "MockOptionError", "MockOptions", "Tally", "Truth", "from_mapping", "run_mock"]
