"""Configuration: flags over environment over defaults, and every mistake is one line."""

import re
from dataclasses import MISSING, dataclass, field
from enum import StrEnum
from typing import Literal

import pytest

from octavo import config


class Policy(StrEnum):
    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_num_seqs: int = 64  # requests per step; raises memory
    queue_timeout_s: float | None = None  # how long a request may wait

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, is {self.max_num_seqs}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    model: str = "tiny"  # what to serve
    listen_addr: str = "0.0.0.0:50052"  # where gateways and workers dial in
    http_port: int = 8000
    policy: Policy = Policy.FCFS  # who goes first
    dtype: Literal["fp32", "bf16"] = "fp32"  # of the weights,
    #                                          and of the cache
    is_tracing_steps: bool = True  # one span per step
    api_keys: tuple[str, ...] = ()  # who may come in; none: everybody
    redis_url: str | None = None  # metadata store
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class NeedsModel:
    model: str  # path or name


def load(*argv: str, **environ: str) -> SchedulerConfig:
    return config.load(SchedulerConfig, "SCHEDULER", argv, environ)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, **environ: str) -> str:
    """The one line on stderr of a start that must fail with status 2."""
    with pytest.raises(SystemExit) as exit_info:
        load(*argv, **environ)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_without_flags_and_variables_everything_has_its_default():
    assert load() == SchedulerConfig()


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default():
    assert load(OCTAVO_SCHEDULER_HTTP_PORT="1").http_port == 1
    assert load("--http-port", "2", OCTAVO_SCHEDULER_HTTP_PORT="1").http_port == 2


def test_fields_of_a_group_are_flags_and_variables_like_all_others():
    assert load("--max-num-seqs=8").limits == Limits(max_num_seqs=8)
    assert load(OCTAVO_SCHEDULER_QUEUE_TIMEOUT_S="1.5").limits == Limits(queue_timeout_s=1.5)


def test_a_group_keeps_what_its_own_default_says():
    @dataclass(frozen=True, kw_only=True)
    class Small:
        limits: Limits = Limits(max_num_seqs=2)

    assert config.load(Small, "SCHEDULER", ["--queue-timeout-s", "3"], {}).limits == Limits(
        max_num_seqs=2, queue_timeout_s=3
    )


def test_every_type_is_read_from_text():
    loaded = load("--policy=priority", "--dtype", "bf16", "--api-keys", "a, b", "--api-keys=c", "--redis-url=none")
    assert loaded == SchedulerConfig(policy=Policy.PRIORITY, dtype="bf16", api_keys=("a", "b", "c"))


@pytest.mark.parametrize(("argv", "expected"), [(["--is-tracing-steps"], True), (["--no-is-tracing-steps"], False)])
def test_a_bool_is_a_pair_of_flags(argv: list[str], expected: bool):
    assert load(*argv, OCTAVO_SCHEDULER_IS_TRACING_STEPS=str(not expected)).is_tracing_steps is expected


def test_a_negative_number_is_a_value_not_a_flag():
    assert load("--queue-timeout-s", "-1").limits.queue_timeout_s == -1


def test_octavo_model_serves_every_service_and_the_prefixed_one_wins():
    assert load(OCTAVO_MODEL="a").model == "a"
    assert load(OCTAVO_MODEL="a", OCTAVO_SCHEDULER_MODEL="b").model == "b"


def test_an_empty_variable_counts_as_unset():
    assert load(OCTAVO_SCHEDULER_HTTP_PORT="", OCTAVO_SCHEDULER_MODEL="", OCTAVO_MODEL="a").model == "a"


def test_a_value_that_cannot_be_is_told_by_what_people_gave(capsys: pytest.CaptureFixture[str]):
    assert refusal(capsys, "--max-num-seqs=0", OCTAVO_SCHEDULER_MAX_NUM_SEQS="5") == (
        "octavo scheduler: --max-num-seqs must be at least 1, is 0"
    )
    assert refusal(capsys, OCTAVO_SCHEDULER_MAX_NUM_SEQS="0") == (
        "octavo scheduler: OCTAVO_SCHEDULER_MAX_NUM_SEQS must be at least 1, is 0"
    )


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert refusal(capsys, "--max-num-seq", "5") == (
        "octavo scheduler: unknown flag --max-num-seq; did you mean --max-num-seqs?"
    )


def test_an_unknown_variable_of_ours_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert refusal(capsys, OCTAVO_SCHEDULER_MAX_SEQS="5") == (
        "octavo scheduler: unknown variable OCTAVO_SCHEDULER_MAX_SEQS; did you mean OCTAVO_SCHEDULER_MAX_NUM_SEQS?"
    )


def test_an_unknown_variable_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]):
    assert "unknown variable OCTAVO_MODLE; did you mean OCTAVO_MODEL?" in refusal(capsys, OCTAVO_MODLE="x")


def test_variables_of_other_services_are_left_to_them():
    assert load(OCTAVO_GATEWAY_WHATEVER="1", OCTAVO_WORKER_DTYPE="x", OCTAVO_LOG_LEVEL="info") == SchedulerConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OCTAVO_SCHEDULER_SERVICE_HOST", "10.0.0.1"),
        ("OCTAVO_SCHEDULER_SERVICE_PORT", "50052"),
        ("OCTAVO_SCHEDULER_SERVICE_PORT_GRPC", "50052"),
        ("OCTAVO_SCHEDULER_PORT", "tcp://10.0.0.1:50052"),
        ("OCTAVO_SCHEDULER_HTTP_PORT", "tcp://10.0.0.1:50052"),
        ("OCTAVO_SCHEDULER_PORT_50052_TCP", "tcp://10.0.0.1:50052"),
        ("OCTAVO_SCHEDULER_PORT_50052_TCP_ADDR", "10.0.0.1"),
        ("OCTAVO_SERVICE_HOST", "10.0.0.1"),
        ("OCTAVO_PORT", "tcp://10.0.0.1:8000"),
    ],
)
def test_what_kubernetes_injects_is_ignored(name: str, value: str):
    assert load(**{name: value}) == SchedulerConfig()


def test_a_real_field_that_looks_like_kubernetes_still_works():
    assert load(OCTAVO_SCHEDULER_HTTP_PORT="9000").http_port == 9000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--http-port", "x"], "--http-port wants an int, got 'x'"),
        (["--dtype", "fp8"], "--dtype wants one of fp32, bf16, got 'fp8'"),
        (["--queue-timeout-s", "soon"], "--queue-timeout-s wants a number or none, got 'soon'"),
        (["--http-port"], "--http-port: expected one argument"),
        (["--max-num-seqs", "0"], "--max-num-seqs must be at least 1, is 0"),
        (["serve"], "unexpected argument 'serve'; every setting is a flag, see --help"),
    ],
)
def test_a_bad_value_says_what_is_wanted(capsys: pytest.CaptureFixture[str], argv: list[str], message: str):
    assert refusal(capsys, *argv) == f"octavo scheduler: {message}"


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str]):
    assert "OCTAVO_SCHEDULER_HTTP_PORT wants an int" in refusal(capsys, OCTAVO_SCHEDULER_HTTP_PORT="x")


def test_a_field_without_default_must_be_given(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        config.load(NeedsModel, "WORKER", [], {})
    assert capsys.readouterr().err == "octavo worker: needs --model (or OCTAVO_MODEL)\n"


def test_help_is_the_trailing_comment_with_its_continuation(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_info:
        load("--help")
    assert exit_info.value.code == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "of the weights, and of the cache [default: fp32; OCTAVO_SCHEDULER_DTYPE]" in text
    assert "requests per step; raises memory [default: 64; OCTAVO_SCHEDULER_MAX_NUM_SEQS]" in text


def test_fields_describe_every_setting():
    described = {setting.name: setting for setting in config.fields(SchedulerConfig, "SCHEDULER")}
    assert list(described)[-2:] == ["max_num_seqs", "queue_timeout_s"]
    seqs = described["max_num_seqs"]
    assert (seqs.flag, seqs.env_var) == ("--max-num-seqs", "OCTAVO_SCHEDULER_MAX_NUM_SEQS")
    assert (seqs.type, seqs.default, seqs.group) == (int, 64, "limits")
    assert config.fields(NeedsModel, "WORKER")[0].default is MISSING


def test_non_defaults_say_where_each_value_came_from():
    loaded = load("--max-num-seqs", "8", "--policy=priority", OCTAVO_MODEL="a")
    assert config.non_defaults(loaded) == {
        "model": ("a", "environment"),
        "policy": (Policy.PRIORITY, "flag"),
        "max_num_seqs": (8, "flag"),
    }


def test_non_defaults_show_no_secrets():
    loaded = load("--api-keys=hunter2", "--redis-url=redis://me:hunter2@host/0")
    assert "hunter2" not in str(config.non_defaults(loaded))


def test_non_defaults_of_a_configuration_made_by_hand_are_empty():
    assert config.non_defaults(SchedulerConfig(http_port=1)) == {}
