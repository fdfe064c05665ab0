"""What a gateway is told of several requests in one message."""

from octavo.columns import unpack
from octavo.common.v1.common_pb2 import PositionLogprobs, TokenLogprob
from scheduler_service import session_wire
from scheduler_service.session_wire import Piled


def test_the_message_says_whose_the_logprobs_are():
    position = PositionLogprobs(sampled=TokenLogprob(token_id=30)).SerializeToString()
    piled = Piled(tokens={1: [10, 11], 2: [20], 3: [30]}, logprobs={3: [position]})
    events = session_wire.events(piled, seq=1).events
    assert list(unpack("num_logprobs", events.num_logprobs)) == [0, 0, 1]
    assert [position.sampled.token_id for position in events.logprobs] == [30]


def test_without_logprobs_nothing_is_said_of_them():
    assert not session_wire.events(Piled(tokens={1: [10]}), seq=1).events.num_logprobs
