"""Generated code: written when protos/ changed, left alone otherwise."""

from pathlib import Path

import pytest

from tools import genproto

PROTO = """syntax = "proto3";
package octavo.demo.v1;
message PingRequest {}
message PingResponse {}
service DemoService { rpc Ping(PingRequest) returns (PingResponse); }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "protos/octavo/demo/v1"
    folder.mkdir(parents=True)
    (folder / "demo.proto").write_text(PROTO)
    return tmp_path


def test_a_proto_becomes_an_importable_package_beside_the_library(root: Path):
    assert genproto.generate(root)
    made = {path.relative_to(root / "octavo").as_posix() for path in (root / "octavo").rglob("*.py*")}
    assert made == {
        "demo/__init__.py",
        "demo/v1/__init__.py",
        "demo/v1/demo_pb2.py",
        "demo/v1/demo_pb2.pyi",
        "demo/v1/demo_pb2_grpc.py",
    }


def test_the_second_time_nothing_is_written(root: Path):
    genproto.generate(root)
    assert not genproto.generate(root)


def test_a_changed_proto_or_a_lost_output_is_made_again(root: Path):
    genproto.generate(root)
    (root / "octavo/demo/v1/demo_pb2.py").unlink()
    assert genproto.generate(root)
    proto = root / "protos/octavo/demo/v1/demo.proto"
    proto.write_text(PROTO.replace("Ping", "Pong"))
    assert genproto.generate(root)
    assert "Pong" in (root / "octavo/demo/v1/demo_pb2.pyi").read_text()


def test_code_of_a_removed_proto_goes_away(root: Path):
    genproto.generate(root)
    folder = root / "protos/octavo/demo/v1"
    (folder / "demo.proto").rename(folder / "other.proto")
    genproto.generate(root)
    assert not (root / "octavo/demo/v1/demo_pb2.py").exists()


def test_a_broken_proto_ends_with_protocs_own_words_and_changes_nothing(root: Path):
    genproto.generate(root)
    (root / "protos/octavo/demo/v1/demo.proto").write_text(PROTO.replace("PingRequest {", "PingRequest ["))
    with pytest.raises(SystemExit, match=r"demo\.proto:3:21"):
        genproto.generate(root)
    assert (root / "octavo/demo/v1/demo_pb2.py").exists()
