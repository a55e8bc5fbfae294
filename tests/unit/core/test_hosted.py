"""How many calls of a provider's own tools a request can make, and what these can cost."""

from msgspec import structs

from sluicegate.core.hosted import Calls, Hosted, calls_of, named_as_told

FEES = {"web_search": 10_000_000, "file_search": 2_500_000}
SEARCH = Hosted("web_search", "tools[0].type", 5)
FETCH = Hosted("web_fetch", "tools[1].type", 2)


def test_calls_of_several_tools_add_up() -> None:
    """Each by its own bound; what costs nothing is called all the same."""
    assert calls_of([SEARCH, FETCH], 0, FEES) == Calls(7, 50_000_000)


def test_a_bound_on_all_together_is_held_at_the_dearest() -> None:
    """Whichever tool the model calls."""
    tools = [Hosted(name, "tools", 3, together=True) for name in ("file_search", "web_search")]
    assert calls_of(tools, 0, FEES) == Calls(3, 30_000_000)


def test_what_the_operator_allows_bounds_what_a_request_says_and_what_it_does_not() -> None:
    """The smaller of both."""
    endless = Hosted("web_search", "tools[0].type")
    assert calls_of([endless], 4, FEES) == Calls(4, 40_000_000)
    assert calls_of([SEARCH], 4, FEES) == Calls(4, 40_000_000)
    assert calls_of([SEARCH], 9, FEES) == Calls(5, 50_000_000)
    assert calls_of([endless, FETCH], 0, FEES) == Calls(2, 0, endless=endless)


def test_rounds_that_the_provider_makes_are_held_whatever_bounds_the_calls() -> None:
    """A call beyond the bound is answered with an error, and the model reads that, too. More calls than rounds are held as calls."""
    looping = structs.replace(SEARCH, rounds=10)
    assert calls_of([looping], 0, FEES) == Calls(9, 50_000_000)
    assert calls_of([looping, structs.replace(FETCH, most=6, rounds=10)], 0, FEES) == Calls(11, 50_000_000)
    endless = Hosted("web_search", "tools[0].type", rounds=10)
    assert calls_of([endless], 0, FEES) == Calls(9, 0, endless=endless)


def test_a_tool_without_a_fee_is_named() -> None:
    """Unless it is known to cost nothing, or said to."""
    code = Hosted("code_interpreter", "tools[0].type", 1, together=True)
    assert calls_of([code, FETCH], 0, FEES).unpriced == code
    assert calls_of([code, FETCH], 0, {"code_interpreter": 0}).unpriced is None


def test_calls_that_no_answer_tells_of_are_apart() -> None:
    """They are charged in any case; what is called before all is read has nothing read again."""
    assert calls_of([Hosted("web_search", "tools[0].type", 1, told=None), SEARCH], 0, FEES) == Calls(6, 50_000_000, 10_000_000)
    assert calls_of([Hosted("web_search", "web_search_options", 1, told=None, again=False), SEARCH], 0, FEES) == Calls(5, 50_000_000, 10_000_000)


def test_fees_have_the_names_by_which_answers_tell() -> None:
    """Of two tools that are told alike the dearer."""
    tools = [Hosted("code_interpreter", "t", told="code_interpreter"), Hosted("code_interpreter_4g", "t", told="code_interpreter"), FETCH]
    fees = {"code_interpreter": 30, "code_interpreter_4g": 120}
    assert named_as_told(tools, fees) == (("code_interpreter", 120), ("web_fetch", 0))
    assert named_as_told([Hosted("web_search", "web_search_options", 1, told=None)], FEES) == ()


def test_tools_of_any_kind_cost_the_dearest() -> None:
    """None is free where nobody says what tools cost; answers tell of all that have a price."""
    prompt = Hosted("prompt", "prompt", 3, together=True, any=True)
    assert calls_of([prompt], 0, FEES) == Calls(3, 30_000_000)
    assert calls_of([prompt], 0, {}).unpriced == prompt
    fees = {**FEES, "web_search_preview": 25, "code_interpreter_4g": 7}
    assert named_as_told([prompt], fees) == (("web_search", 10_000_000), ("file_search", 2_500_000), ("code_interpreter", 7))
