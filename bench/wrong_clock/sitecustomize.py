"""What a gateway with a wrong clock runs before anything else: a sleep that works there (stand.py).

libfaketime, told to leave the monotonic clock alone, takes the time until which a thread wants to sleep for one of the wall clock, and every sleep
fails. Waiting for nothing lasts as long and names no time.
"""

import select
import time


def _sleep(seconds: float) -> None:
    select.select((), (), (), seconds)


time.sleep = _sleep
