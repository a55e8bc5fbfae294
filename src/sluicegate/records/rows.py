"""What goes into the records and comes out of them. Times: ledger time, milliseconds where a name ends in _ms, seconds where it ends in _s."""

from typing import Literal

import msgspec

from sluicegate.core.limits import Unit

Status = Literal["open", "lost", "seeding"]


class RecordsUnavailable(Exception):
    """The records database did not answer in time, cannot be reached or refused. The outcome of the call is unknown."""


class RecordsTooNew(RecordsUnavailable):
    """A newer program has changed the tables; this one must not touch them."""


class RecordsBehind(RecordsUnavailable):
    """The records lack lines of a writer that they once had: they are other ones, or an older copy. Nothing was changed."""


class NotLeading(RecordsUnavailable):
    """Somebody else has taken the lead of the tree, or it has been opened. Nothing was changed."""


class UsageRow(msgspec.Struct, frozen=True, gc=False):
    """What was used by requests of one key that were admitted in one second, at one model and deployment."""

    tree: str  # of the key
    time_s: int  # second of admission
    key_id: str
    model: str  # as the client named it
    deployment: str
    requests: int  # logical requests; what `requests` limits of tenants and keys count
    attempts: int  # physical calls; what `requests` limits of deployments count
    input_tokens: int
    output_tokens: int
    cost_nano_usd: int


class TreeRow(msgspec.Struct, frozen=True):
    """What all workers agree on about one tree's state in the ledger."""

    tree: str
    epoch: str  # of the last seeding; "" before the first
    seq: int  # the highest that any worker has published for this epoch
    status: Status
    round: int  # in which it became what it is; rounds rise over all trees
    incarnation: str  # of the server in which the epoch was last seen whole
    leader: str  # the worker that may seed it; "" nobody
    lease_ms: int  # when its lead ends


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker's sign of life. round: it has confirmed this one and all before."""

    worker: str
    beat_ms: int
    round: int
    incarnation: str


class Sum(msgspec.Struct, frozen=True):
    """One question: how much of a unit was used in a scope by requests admitted in [start_ms, end_ms)."""

    scope_id: str  # "*": everything; a tenant's or key's id: that and all below it; with `deployment`: the deployment's id
    deployment: bool
    models: frozenset[str] | None  # None: every model
    unit: Unit
    start_ms: int
    end_ms: int  # 0: open end
    slice_ms: int = 0  # then the answer is {slice number: amount}, slice n being [n * slice_ms, (n + 1) * slice_ms)
    counter: str = ""  # its identity, where adjustments of it count too
