"""What a cache, content rules and a log of requests add to the cost of a unary request.

    python bench/policy_cost.py --json bench/results/policy-cost.json

Two gateways with the same limits, in databases of one Redis, in front of the same upstream: one as bench/overhead.py has it, one with what `--on`
says, all three unless told. Every request of `miss` has a text of its own, so the cache looks up, misses and keeps each; those of `hit` are one and
the same. Alternating pairs; the result is the median of their ratios. Needs Debian's nginx-light, wrk and redis-server. CPU is that of the gateway's
process: only the ratios mean something on another machine.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from overhead import KEY, MESSAGES, config, measured, nginx, static_server, tell
from support_gateway import free_port, running_gateway, running_redis  # where overhead.py has made it known

POLICY = {
    "cache": "cache: {{mode: all, scope: key, backend: {backend}}}",
    "rules": """
rules:
  system_prompt: Answer in the language of the question.
  disclaimer: Answers may be wrong.
  banned:
    - {{name: project, pattern: project bluebird, action: refuse}}
    - {{name: rival, pattern: "regex:acme ?corp", action: mask, on: both}}""",
    "log": "log: {{access: off, prompts: redacted, requests: {{to: {directory}/requests.jsonl}}}}",
}
OFF = {"cache": "", "rules": "", "log": "log: {{access: off}}"}


def script(unique: bool) -> str:
    """For wrk. unique: each request says something else."""
    body = json.dumps(
        {"model": "unary", "max_tokens": 200, "messages": [*MESSAGES[:-1], {"role": "user", "content": MESSAGES[-1]["content"] + " @"}]}
    )
    before, after = body.split("@")
    head = f'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\nwrk.headers["Authorization"]="Bearer {KEY}"\n'
    if not unique:
        return f"{head}wrk.body=[==[{before}{after}]==]\n"
    return f"{head}local n=0\nfunction request() n=n+1 return wrk.format(nil,nil,nil,[==[{before}]==]..os.time()..n..[==[{after}]==]) end\n"


def compare(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    static = free_port()
    upstream = f"http://127.0.0.1:{static}"
    with running_redis(directory) as redis, nginx(directory, "static", static_server(static, None)):
        plain_home, policy_home = directory / "plain", directory / "policy"
        plain_home.mkdir()
        policy_home.mkdir()
        plain = config(plain_home, redis, upstream, upstream, "")
        policy = config(policy_home, redis.replace("/0", "/1"), upstream, upstream, "").replace("log: {access: off}\n", "")
        more = "\n".join(POLICY[name] if name in arguments.on else OFF[name] for name in POLICY)
        policy += more.format(backend=arguments.backend, directory=policy_home)
        with running_gateway(plain_home, plain, "plain") as off, running_gateway(policy_home, policy, "policy") as on:
            pairs: dict[str, list[tuple[float, float]]] = {"miss": [], "hit": []}
            for gateway in (off, on):
                measured(directory, gateway.url, gateway.pid, script(True), arguments.connections, 2)
            for _ in range(arguments.rounds):
                for name, found in pairs.items():
                    lua, width, seconds = script(name == "miss"), arguments.connections, arguments.seconds
                    plainly, ruled = (measured(directory, one.url, one.pid, lua, width, seconds) for one in (off, on))
                    found.append((plainly, ruled))
    return {
        name: {
            "off_cpu_us": round(min(off for off, _ in found), 1),
            "on_cpu_us": round(min(on for _, on in found), 1),
            "ratio": round(statistics.median(on / off for off, on in found), 2),
        }
        for name, found in pairs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs="+", choices=[*POLICY], default=[*POLICY])
    parser.add_argument("--backend", choices=["memory", "redis"], default="redis")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = compare(arguments, Path(directory))
    tell("policy cost", arguments, result)


if __name__ == "__main__":
    main()
