"""What a request and a streamed chunk cost the gateway's process, beside nginx as a plain reverse proxy in front of the same upstreams.

    python bench/overhead.py                       # Redis ledger, plain HTTP upstream
    python bench/overhead.py --ledger sqlite --tls
    python bench/overhead.py --idle-streams 1000   # memory per idle open stream instead

Needs Debian's nginx-light, wrk and redis-server, and openssl for --tls. Everything is on loopback. One worker; a key with requests and tokens per
minute, under a team with tokens per day, under an organization with dollars per month; metrics and the journal are on. CPU is what the kernel has
counted for the process, so only the ratios mean something on another machine: both sides run in the same minute, alternating.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support_gateway import Child, free_port, running_gateway, running_mock, running_redis

CHUNKS, TPOT_MS = 150, 2
KEY = "sk-bench"
MESSAGES = [
    {"role": "system", "content": "You answer questions about distributed systems."},
    {"role": "user", "content": "Explain briefly how a token bucket works and why it is used to limit the rate of an interface."},
]
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "small",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A bucket fills at a steady rate."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 42, "completion_tokens": 16, "total_tokens": 58},
}
NGINX = """worker_processes 1; daemon off; error_log {d}/error.log; pid {d}/nginx.pid;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 600s; client_body_temp_path {d}/b; proxy_temp_path {d}/p;
 fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u; scgi_temp_path {d}/s; {servers} }}"""


@contextlib.contextmanager
def nginx(directory: Path, name: str, servers: str) -> Iterator[int]:
    """Runs nginx with one worker; yields the pid of its top process."""
    home = directory / name
    home.mkdir()
    (home / "nginx.conf").write_text(NGINX.format(d=home, servers=servers))
    child = Child(["nginx", "-c", str(home / "nginx.conf"), "-e", str(home / "error.log")], home / "log")
    try:
        yield child.pid
    finally:
        child.stop()


def static_server(port: int, tls: tuple[Path, Path] | None) -> str:
    listen = f"listen 127.0.0.1:{port}{' ssl' if tls else ''} backlog=4096;"
    certificate = f"ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]};" if tls else ""
    return f"server {{ {listen} {certificate} location / {{ default_type application/json; return 200 '{json.dumps(REPLY)}'; }} }}"


def proxy_servers(pairs: list[tuple[int, str]]) -> str:
    text = ""
    for port, upstream in pairs:
        scheme, _, address = upstream.partition("://")
        text += f"upstream u{port} {{ server {address}; keepalive 512; keepalive_requests 100000000; }}"
        text += f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {scheme}://u{port}; proxy_http_version 1.1;"
        text += " proxy_set_header Connection ''; proxy_buffering off; proxy_ssl_session_reuse on; } } "
    return text


def certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*command, "-out", str(cert), *subject], check=True, capture_output=True)
    return cert, key


def config(directory: Path, ledger: str, unary: str, stream: str, ca_file: str) -> str:
    return f"""
server: {{listen: "127.0.0.1:0"}}
ledger: {ledger}
journal: {directory}/journal/
log: {{access: off}}
providers:
  unary: {{dialect: openai, base_url: {unary}/v1, api_key: sk-upstream, ca_file: "{ca_file}"}}
  stream: {{dialect: openai, base_url: {stream}/v1, api_key: sk-upstream, stops_on_close: on}}
models:
  unary: {{deployments: [{{provider: unary, model: small, price: {{input: 0.15, output: 0.6}}}}]}}
  stream: {{deployments: [{{provider: stream, model: small, price: {{input: 0.15, output: 0.6}}}}]}}
tenants:
  acme:
    limits: [$4000000/month]
    children:
      team:
        limits: [900000M tokens/day]
        keys: [{{name: bench, key: {KEY}, limits: [6000M requests/minute, 900000M tokens/minute]}}]
"""


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children."""
    total = 0
    todo = [pid]
    while todo:
        one = todo.pop()
        stat = Path(f"/proc/{one}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        total += int(fields[11]) + int(fields[12])
        for task in Path(f"/proc/{one}/task").iterdir():
            todo += [int(child) for child in (task / "children").read_text().split()]
    return total / os.sysconf("SC_CLK_TCK")


def rss_kib(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


def load(directory: Path, url: str, pid: int, model: str, connections: int, seconds: int) -> float:
    """Microseconds of CPU per request, or per chunk of a stream."""
    streams = model == "stream"
    streamed = {"stream": True, "mock": {"completion": CHUNKS}} if streams else {}
    body = json.dumps({"model": model, "max_tokens": 200, "messages": MESSAGES, **streamed})
    lua = f'wrk.method="POST"\nwrk.body=[==[{body}]==]\nwrk.headers["Content-Type"]="application/json"\nwrk.headers["Authorization"]="Bearer {KEY}"\n'
    return measured(directory, url, pid, lua, connections, seconds) / (CHUNKS if streams else 1)


def measured(directory: Path, url: str, pid: int, lua: str, connections: int, seconds: int) -> float:
    """Microseconds of a process's CPU per request, of those that wrk makes by a script."""
    script = directory / "wrk.lua"
    script.write_text(lua)
    before = cpu_s(pid)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", str(script), f"{url}/v1/chat/completions"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = cpu_s(pid) - before
    if "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"void: {said}")
    requests = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    return 1e6 * used / requests


def compare(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    tls = certificate(directory) if arguments.tls else None
    static, unary_proxy, stream_proxy = free_port(), free_port(), free_port()
    unary = f"{'https' if tls else 'http'}://127.0.0.1:{static}"
    with contextlib.ExitStack() as stack:
        mock = stack.enter_context(running_mock(directory, "--tpot", f"{TPOT_MS}ms", "--ttft", "0ms"))
        stack.enter_context(nginx(directory, "static", static_server(static, tls)))
        proxy = stack.enter_context(nginx(directory, "proxy", proxy_servers([(unary_proxy, unary), (stream_proxy, mock.url)])))
        redis = arguments.ledger == "redis"
        ledger = stack.enter_context(running_redis(directory)) if redis else f"sqlite:///{directory}/ledger.db"
        text = config(directory, ledger, unary, mock.url, str(tls[0]) if tls else "")
        gateway = stack.enter_context(running_gateway(directory, text))
        load(directory, gateway.url, gateway.pid, "unary", arguments.connections, 1)  # warms both sides up
        rows: dict[str, list[tuple[float, float]]] = {"unary": [], "stream": []}
        for _ in range(arguments.rounds):
            for model, port, width in (("unary", unary_proxy, arguments.connections), ("stream", stream_proxy, arguments.streams)):
                plain = load(directory, f"http://127.0.0.1:{port}", proxy, model, width, arguments.seconds)
                ours = load(directory, gateway.url, gateway.pid, model, width, arguments.seconds)
                rows[model].append((ours, plain))
    return {
        model: {
            "gateway_cpu_us": round(min(ours for ours, _ in pairs), 1),
            "nginx_cpu_us": round(min(plain for _, plain in pairs), 1),
            "ratio": round(statistics.median(ours / plain for ours, plain in pairs), 2),
        }
        for model, pairs in rows.items()
    }


async def hold_open(port: int, count: int, opened: list[asyncio.StreamWriter]) -> None:
    body = json.dumps({"model": "stream", "stream": True, "max_tokens": 200, "messages": MESSAGES, "mock": {"stall_after": 1}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        opened.append(writer)


def memory(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """The slope of the gateway's resident memory over idle open streams: the first half warms up, the second is measured."""
    with running_mock(directory) as mock, running_redis(directory) as redis:
        text = config(directory, redis, mock.url, mock.url, "")
        with running_gateway(directory, text) as gateway:

            async def drive() -> tuple[int, int]:
                opened: list[asyncio.StreamWriter] = []
                await hold_open(gateway.port, arguments.idle_streams, opened)
                half = rss_kib(gateway.pid)
                await hold_open(gateway.port, arguments.idle_streams, opened)
                whole = rss_kib(gateway.pid)
                for writer in opened:
                    writer.close()
                return half, whole

            half, whole = asyncio.run(drive())
    return {"idle_streams": arguments.idle_streams, "kib_per_stream": round((whole - half) / arguments.idle_streams, 1)}


def tell(what: str, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Prints a result with its machine and parameters, and writes it where `--json` says."""
    parameters = {name: value for name, value in vars(arguments).items() if name != "json"}
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version(), "kernel": platform.release()}
    report = {"what": what, "date": time.strftime("%Y-%m-%d"), "machine": machine, "parameters": parameters, "result": result}
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledger", choices=["redis", "sqlite"], default="redis")
    parser.add_argument("--tls", action="store_true", help="the unary upstream speaks TLS, to the gateway and to nginx alike")
    parser.add_argument("--idle-streams", type=int, default=0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = memory if arguments.idle_streams else compare
        result = work(arguments, Path(directory))
    tell("overhead", arguments, result)


if __name__ == "__main__":
    main()
