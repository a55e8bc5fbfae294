"""Time as the breakers and cooldowns of a running gateway see it, in a test's hand."""

from support_inloop import Bench


class Time:
    """Stands still until it is moved. Pauses before a retry are not slept but noted."""

    def __init__(self, bench: Bench) -> None:
        gateway = bench.worker.gateway
        self.now_s = gateway._clock()
        self.slept: list[float] = []
        gateway._clock = gateway.standings._clock = lambda: self.now_s
        gateway._sleep = self._sleep

    async def _sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
