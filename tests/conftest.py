"""Brings the generated protobuf code up to date before any test is collected."""

from tools import genproto

genproto.generate()
