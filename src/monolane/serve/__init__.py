"""The HTTP server: OpenAI's API on one engine, with a stated policy of who decodes when.

``serve`` runs it until a signal; ``build_app`` is the same as an ASGI application.
"""

from monolane.serve._keys import Keys, add_key
from monolane.serve._options import Policy, ServerOptions
from monolane.serve._run.service import Service
from monolane.serve._server import build_app, serve

__all__ = ["Keys", "Policy", "ServerOptions", "Service", "add_key", "build_app", "serve"]
