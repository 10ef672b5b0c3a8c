"""OpenAI's two older routes, ``/v1/chat/completions`` and ``/v1/completions``, as a dialect."""

from collections.abc import Callable

from monolane.serve._http.json_body import parse_body
from monolane.serve._http.request import Asked
from monolane.serve._http.writer import Read, Writer
from monolane.serve._openai.body import ChatRequest, CompletionRequest
from monolane.serve._openai.legacy import modern
from monolane.serve._openai.reply import Reply
from monolane.serve._openai.writer import EventWriter
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service


def completions(service: Service, kind: type[ChatRequest] | type[CompletionRequest]) -> Read:
    """Return the reader of one of the routes."""

    def read(data: bytes, owner: bytes) -> tuple[Asked, Callable[[ServedRequest], Writer]]:
        body = parse_body(kind, data)
        service.check_model(body.model)
        request = modern(body) if isinstance(body, ChatRequest) else body
        asked = request.asked(service.defaults)
        return asked, lambda served: EventWriter(Reply(service, body, served))

    return read
