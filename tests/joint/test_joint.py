"""The cores together, under everything that may happen to them."""

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.joint.machine import JointMachine

QUICK = settings(
    max_examples=150,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

TestJoint = JointMachine.TestCase
TestJoint.settings = QUICK


class TestJointAtLength(JointMachine.TestCase):  # type: ignore[misc, valid-type]
    """The same with more and longer runs."""

    settings = settings(QUICK, max_examples=2000, stateful_step_count=50)


TestJointAtLength.pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
