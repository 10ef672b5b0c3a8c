"""Grammars of answers: what a request asks for, compiled, and followed token by token."""
