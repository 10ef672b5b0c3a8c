"""The HTTP server: the APIs of OpenAI, Anthropic and llama.cpp on one engine.

Who decodes when is a stated policy.

``serve`` runs it until a signal; ``build_app`` is the same as an ASGI application.
"""

from monolane.serve._keys import Keys, add_key
from monolane.serve._options import Policy, ServerOptions
from monolane.serve._run.service import Service
from monolane.serve._server import build_app, serve

__all__ = ["Keys", "Policy", "ServerOptions", "Service", "add_key", "build_app", "serve"]
