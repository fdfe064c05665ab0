"""How many threads compute a step: all of them, or fewer while something else keeps their cores busy. Pure.

Threads of one step wait for each other, so a step is as slow as its slowest thread: beside a busy neighbour two threads
on two cores take twice as long as one. What a step waited tells; now and then one more thread is tried again.
"""

MAX_WAIT_SHARE = 0.4  # of a step's time; above it the step is faster without the thread that is late
MAX_WAIT_SHARE_OF_SHORT = 0.2  # of a short step, to which another thread brings less
WINDOW_STEPS = 6  # steps that are judged together
FIRST_PAUSE_NS = 500_000_000  # of computing, before one more thread is tried
LONGEST_PAUSE_NS = 16_000_000_000
MAX_SHORT_TOKENS = 16  # of a step that takes as long as reading the weights does


class ThreadPolicy:
    """Watches the steps and says how many threads the next one gets."""

    def __init__(self, max_threads: int, max_wait_share: float = MAX_WAIT_SHARE) -> None:
        self.num_threads = max_threads
        self._max_wait_share = max_wait_share
        self._max_threads = max_threads
        self._pause_ns = FIRST_PAUSE_NS  # until the next try; doubles with every try that fails
        self._was_raised = False  # by the last change
        self._since_change_ns = 0
        self._num_windows = 0  # since the last change
        self._num_steps = 0
        self._busy_ns = 0
        self._wait_ns = 0

    def observe(self, *, busy_ns: int, wait_ns: int) -> None:
        """A step took busy_ns, and its threads waited at most wait_ns of it for each other."""
        self._since_change_ns += busy_ns
        self._num_steps += 1
        self._busy_ns += busy_ns
        self._wait_ns += wait_ns
        if self._num_steps < WINDOW_STEPS:
            return
        is_held_up = self._wait_ns > self._max_wait_share * self._busy_ns
        self._num_steps = self._busy_ns = self._wait_ns = 0
        self._num_windows += 1
        if is_held_up and self.num_threads > 1:
            is_soon = self._num_windows == 1 or self._since_change_ns < FIRST_PAUSE_NS  # steps may take seconds
            has_failed = self._was_raised and is_soon
            self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS) if has_failed else FIRST_PAUSE_NS
            self._change(-1)
        elif not is_held_up and self.num_threads < self._max_threads and self._since_change_ns >= self._pause_ns:
            self._change(+1)

    def _change(self, by: int) -> None:
        self.num_threads += by
        self._was_raised = by > 0
        self._since_change_ns = self._num_windows = 0


class StepThreads:
    """A policy for short steps and one for long ones.

    A step of one token waits for memory and is over before a neighbour's turn is: beside the other services a second
    thread gains it less than it costs. A chunk of a prompt is all arithmetic. One says nothing of the other.
    """

    def __init__(self, max_threads: int) -> None:
        self._short = ThreadPolicy(max_threads, MAX_WAIT_SHARE_OF_SHORT)
        self._long = ThreadPolicy(max_threads)

    def of_step(self, num_tokens: int) -> ThreadPolicy:
        return self._short if num_tokens <= MAX_SHORT_TOKENS else self._long
