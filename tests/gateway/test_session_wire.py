"""Messages of the session, read by a gateway that no longer knows every request in them."""

from gateway import session_wire
from gateway.core.submission import Tokens
from octavo.columns import pack
from octavo.common.v1.common_pb2 import PositionLogprobs, TokenLogprob
from octavo.scheduler.v1 import scheduler_pb2 as pb


def test_each_request_gets_its_own_logprobs_whoever_else_has_some():
    events = pb.Events(
        request_nums=pack([1, 2, 3]),
        num_tokens=pack([2, 1, 2]),
        token_ids=pack([10, 11, 20, 30, 31]),
        num_logprobs=pack([2, 0, 2]),
        logprobs=[PositionLogprobs(sampled=TokenLogprob(token_id=token_id)) for token_id in (10, 11, 30, 31)],
    )
    assert _logprob_ids(events) == {1: [10, 11], 2: [], 3: [30, 31]}


def test_no_column_of_logprobs_means_that_nobody_has_any():
    assert _logprob_ids(pb.Events(request_nums=pack([1, 2]), token_ids=pack([10, 20]))) == {1: [], 2: []}


def _logprob_ids(events: pb.Events) -> dict[int, list[int]]:
    pieces = [(num, update) for num, update in session_wire.updates(events) if isinstance(update, Tokens)]
    return {num: [position.sampled[0] for position in tokens.logprobs] for num, tokens in pieces}
