"""The line of `octavo serve`: which flag goes to which service, and what is said about mistakes."""

import pytest

from octavo import config
from octavo.cli import serve_flags


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        serve_flags.parse(line.split())
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("line", "service", "argv"), [
    ("--port 80", "gateway", ["--port=80"]),
    ("--served-model-name a b", "gateway", ["--served-model-name=a,b"]),
    ("--served-model-name a --served-model-name b", "gateway", ["--served-model-name=a,b"]),
    ("--max-num-seqs 8", "scheduler", ["--max-num-seqs=8"]),
    ("--max-num-seqs 8 --max-num-seqs 9", "scheduler", ["--max-num-seqs=9"]),
    ("--scheduling-policy priority", "scheduler", ["--scheduling-policy=priority"]),
    ("--no-enable-prefix-caching", "kvcache", ["--no-enable-prefix-caching"]),
    ("--enable-prefix-caching", "kvcache", ["--enable-prefix-caching"]),
    ("--redis-url redis://h:1/0", "kvcache", ["--redis-url=redis://h:1/0"]),
    ("--dtype float32", "worker", ["--dtype=float32"]),
    ("--block-size 32", "worker", ["--block-size=32"]),
    ("--worker-metrics-port 7", "worker", ["--metrics-port=7"]),
    ("--metrics-port 7", "serve", ["--metrics-port=7"]),
    ("--num-workers 2", "serve", ["--num-workers=2"]),
])  # fmt: skip
def test_flag_reaches_its_service(line: str, service: str, argv: list[str]):
    parsed = serve_flags.parse(line.split())
    assert parsed.argv[service] == argv
    assert all(not others for name, others in parsed.argv.items() if name != service)


@pytest.mark.parametrize(("theirs", "ours"), [
    ("--gpu-memory-utilization", "--memory-utilization"), ("--num-gpu-blocks-override", "--num-blocks"),
])  # fmt: skip
def test_spelling_of_vllm_means_our_setting(theirs: str, ours: str):
    assert serve_flags.parse([theirs, "7"]) == serve_flags.parse([ours, "7"])
    assert serve_flags.parse([theirs, "7"]).argv["worker"] == [f"{ours}=7"]


@pytest.mark.parametrize(("line", "services"), [
    ("--log-level debug", {"gateway", "scheduler", "kvcache", "worker"}),
    ("--drain-timeout-s 3", {"gateway", "scheduler", "kvcache", "worker"}),
    ("--shutdown-timeout 3", {"gateway", "scheduler", "kvcache", "worker"}),
    ("--max-num-batched-tokens 64", {"scheduler", "worker"}),
    ("some/model", {"gateway", "worker"}),
    ("--model some/model", {"gateway", "worker"}),
])  # fmt: skip
def test_shared_setting_reaches_every_service_that_has_it(line: str, services: set[str]):
    assert {service for service, argv in serve_flags.parse(line.split()).argv.items() if argv} == services


def test_every_setting_of_every_service_has_a_flag():
    spellings = {flag.spelling for flag in serve_flags.all_flags()}
    for service, cls in serve_flags.CONFIGS.items():
        for setting in config.fields(cls, service.upper()):
            named = f"--{service}-{setting.flag.removeprefix('--')}"
            assert setting.name == "log_format" or named in spellings or service == "serve"


def test_model_may_stand_anywhere():
    assert serve_flags.parse(["--port", "80", "m.gguf"]).model == serve_flags.parse(["m.gguf"]).model == "m.gguf"


def test_settings_travel_as_variables():
    parsed = serve_flags.parse(["m.gguf", "--no-enable-prefix-caching", "--worker-log-level", "debug"])
    assert parsed.variables["worker"] == {"OCTAVO_WORKER_MODEL": "m.gguf", "OCTAVO_WORKER_LOG_LEVEL": "debug"}
    assert parsed.variables["kvcache"] == {"OCTAVO_KVCACHE_ENABLE_PREFIX_CACHING": "false"}


@pytest.mark.parametrize(("typed", "meant"), [
    ("--max-num-seq", "--max-num-seqs"), ("--gpu-memory-utilisation", "--gpu-memory-utilization"),
    ("--no-enable-prefix-cachin", "--enable-prefix-caching"), ("--worker-dtyp", "--worker-dtype"),
])  # fmt: skip
def test_unknown_flag_names_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert refused(f"{typed} 1", capsys) == f"octavo serve: unknown flag {typed}; did you mean {meant}?\n"


def test_flag_of_several_services_asks_which(capsys: pytest.CaptureFixture[str]):
    said = refused("--listen-addr 127.0.0.1:1", capsys)
    assert "--scheduler-listen-addr or --kvcache-listen-addr or --worker-listen-addr" in said


def test_second_model_is_unexpected(capsys: pytest.CaptureFixture[str]):
    assert "unexpected argument 'b'" in refused("a b", capsys)


def test_help_shows_each_setting_once_with_its_variable(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        serve_flags.parse(["--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("--max-num-seqs") == 1
    assert "OCTAVO_SCHEDULER_MAX_NUM_SEQS" in out
    assert "--worker-dtype" not in out


def test_help_names_what_serve_chooses_instead_of_the_services_defaults(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        serve_flags.parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "127.0.0.1:50053" not in shown
    assert "redis://127.0.0.1:6379" not in shown
    assert "[default: a Unix socket; OCTAVO_SCHEDULER_KVCACHE_ADDR]" in shown


def test_help_names_each_service_whose_default_differs(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        serve_flags.parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for service in ("scheduler", "worker"):
        (setting,) = (f for f in config.fields(serve_flags.CONFIGS[service]) if f.name == "max_num_batched_tokens")
        assert f"{setting.default} of the {service}" in shown
