"""From the configuration to the policy: scopes, counters, routes. Checks what the fields of a file say of each other.

All problems are collected and raised together as one ConfigError; a policy is only built from a configuration without any.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from sluicegate.config import schema
from sluicegate.config.compile_routes import Routes
from sluicegate.config.compile_tenants import TenantTree
from sluicegate.config.compile_webhooks import Webhooks
from sluicegate.config.compiling import Compiling
from sluicegate.config.fields import ConfigError, Problem
from sluicegate.config.schema import Config
from sluicegate.core import counters as counting
from sluicegate.core.tenants import Budget, Key, Model, Policy, Resilience

ADMIN_KEY_MIN = 16
MARKS_OF_COUNTER_MAX = 48  # a bit for each, in a number that a double holds


def compile_policy(config: Config, file: str = "config", environ: Mapping[str, str] = MappingProxyType({})) -> Policy:
    """The policy of a configuration; `environ` may name proxies.

    Raises ConfigError with everything that does not fit together; its problems have no lines yet.
    """
    problems: list[Problem] = []
    policy = _Compiler(config, environ, problems).policy()
    if problems:
        raise ConfigError(file, problems)
    return policy


class _Compiler(Compiling):
    def policy(self) -> Policy:
        config = self.config
        models = Routes(config, self.environ, self.problems).routes()
        keys = TenantTree(config, self.environ, self.problems).keys()
        if config.ledger.startswith("memory:") and config.server.workers > 1:
            self.problem(("ledger",), "is kept in one process's memory; with several workers use sqlite:///data/ledger.db or redis://")
        if config.cache.backend == "redis" and not in_redis(config.ledger):
            self.problem(("cache", "backend"), "is the ledger's Redis, and the ledger is in none; use memory, or ledger: redis://...")
        if config.cache.max_entry > config.cache.max_bytes:
            self.problem(("cache", "max_entry"), "is more than max_bytes, so nothing of that size could be kept")
        self.check_admin()
        self.check_tracing()
        self.check_marks(keys, models)
        if not keys and not self.problems and config.admin.secret is None:
            self.problem(("tenants",), "have no key at all; nobody could call")
        return Policy(
            keys=keys,
            models=models,
            budget=_budget(config.budget),
            unpriced="free" if config.prices.unpriced == "free" else "refuse",
            cost_source=config.prices.cost_source,
            on_ledger_failure=config.on_ledger_failure,
            resilience=_resilience(config.resilience),
            webhooks=Webhooks(config, self.environ, self.problems).webhooks(),
        )

    def check_admin(self) -> None:
        server, admin = self.config.server, self.config.admin
        if admin.key is not None and admin.key_of_env is not None:
            self.problem(("admin", "key"), "is given twice: here and by key_env")
        if admin.secret is not None and len(admin.secret.get_secret_value()) < ADMIN_KEY_MIN:
            self.problem(("admin", "key" if admin.key else "key_env"), f"must have at least {ADMIN_KEY_MIN} characters")
        self.check_admin_keys()
        if admin.secret is not None and admin.listen is None and not server.address.on_loopback:
            where = "an address for /admin and /metrics alone, such as 127.0.0.1:8081"
            self.problem(("admin",), f"needs listen ({where}), since others than this machine can connect to server.listen")
        if admin.listen is not None and admin.address == server.address and server.address.port:
            self.problem(("admin", "listen"), "must be another address than that of server.listen")
        if admin.chaos and admin.secret is None:
            self.problem(("admin", "chaos"), "has no effect without admin.key_env")

    def check_admin_keys(self) -> None:
        admin, known = self.config.admin, {"admin key"}
        if admin.keys and admin.secret is None:
            self.problem(("admin", "keys"), "has no effect without admin.key_env")
        for i, one in enumerate(admin.keys):
            if (one.key_of_env is None) == (one.sha256 is None):
                self.problem(("admin", "keys", i), "needs key_env or sha256 (the SHA-256 of the key, in hex), one of them")
            elif one.key_of_env is not None and len(one.key_of_env.get_secret_value()) < ADMIN_KEY_MIN:
                self.problem(("admin", "keys", i, "key_env"), f"must have at least {ADMIN_KEY_MIN} characters")
            if one.name in known:
                self.problem(("admin", "keys", i, "name"), f"{one.name!r} is the name of another key")
            known.add(one.name)

    def check_tracing(self) -> None:
        tracing = self.config.tracing
        if tracing is None:
            return
        if not (_installed("opentelemetry.sdk.trace") and _installed("opentelemetry.exporter.otlp.proto.http")):
            self.problem(("tracing",), "needs what is not installed: pip install 'sluicegate[otel]'")
        try:
            _ = tracing.headers
        except ValueError as error:
            self.problem(("tracing", "headers_env"), str(error))

    def check_marks(self, keys: Mapping[bytes, Key], models: Mapping[str, Model]) -> None:
        of_keys = (counter for key in keys.values() for counter in key.counters)
        of_deployments = (counter for model in models.values() for one in model.deployments for counter in one.counters)
        for prefix, counter in {counter.key_prefix: counter for counter in (*of_keys, *of_deployments)}.items():
            amounts = {mark.amount for mark in counting.marks(counter)}
            if len(amounts) > MARKS_OF_COUNTER_MAX:
                where = "models" if prefix.startswith("sg1:{d/") else "tenants"
                self.problem((where,), f"{counting.name(counter)} has {len(amounts)} warning marks; {MARKS_OF_COUNTER_MAX} can be told apart")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def in_redis(ledger: str) -> bool:
    """Whether a ledger's URL names a Redis, or several."""
    return not ledger.startswith(("memory:", "sqlite:"))


def _budget(written: schema.Budget) -> Budget:
    fields = written.model_dump(exclude={"queue", "warn_at"})
    queue = written.queue
    return Budget(show_figures=fields.pop("figures"), queue_max_wait_ms=queue.max_wait_ms, queue_max_depth=queue.max_depth, **fields)


def _resilience(written: schema.Resilience) -> Resilience:
    fields = written.model_dump(exclude={"timeouts", "breaker"})
    return Resilience(breaker_failures=written.breaker.failures, breaker_pause_ms=written.breaker.pause_ms, **fields)
