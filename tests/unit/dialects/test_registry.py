"""Which dialects there are, and which pairs of them can be put together."""

import json

import pytest

from sluicegate.dialects.content import Inexpressible
from sluicegate.dialects.openai_request import read_request
from sluicegate.dialects.registry import CLIENTS, DIALECTS, PROVIDERS, between

REQUEST = read_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')


def test_every_registered_dialect_has_its_sides() -> None:
    """What the gateway and the other side ask of them, under the same names."""
    for name, module in DIALECTS.items():
        assert name == module.NAME
        assert all(hasattr(module, part) for part in ("PATH", "read_answer", "streamed", "StreamReader")), name
    for content in CLIENTS.values():
        assert all(hasattr(content, part) for part in ("read_prompt", "write_reply", "Writer"))
    for content in PROVIDERS.values():
        assert all(hasattr(content, part) for part in ("write_prompt", "read_reply", "Pieces"))
    assert DIALECTS.keys() >= CLIENTS.keys() | PROVIDERS.keys()


def test_a_pair_is_put_together_by_name() -> None:
    """With the request's id and time for answers that have none."""
    body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
    answer = json.loads(between("openai_chat", "openai_chat", REQUEST, "req_2", 5).read_answer(body).body)
    assert (answer["id"], answer["created"]) == ("req_2", 5)


@pytest.mark.parametrize(
    ("client", "provider"), [("openai_chat", "openai_embeddings"), ("openai_embeddings", "openai_chat"), ("openai_chat", "none")]
)
def test_a_pair_that_does_not_exist(client: str, provider: str) -> None:
    """Is a request that the deployment cannot be asked; it names the model."""
    with pytest.raises(Inexpressible) as error:
        between(client, provider, REQUEST, "req_1", 5)
    assert error.value.param == "model"
