"""What every reply to a request says, in chunks or as a whole."""

import json
import secrets
import time
from typing import Any

from monolane._version import __version__
from monolane.serve._gather import gather
from monolane.serve._requests import AnswerRequest, ChatRequest
from monolane.serve._run import Run
from monolane.serve._service import Service
from monolane.serve._shapes import Shape


class Reply:
    """The common parts of one request's replies."""

    def __init__(
        self, service: Service, request: AnswerRequest, run: Run, shape: Shape, logprobs: bool
    ) -> None:
        self.service, self.request, self.run, self.shape = service, request, run, shape
        self.logprobs = logprobs  # whether the request wants them
        self._id = shape.id_prefix + secrets.token_hex(16)
        self._created = int(time.time())

    @property
    def is_chat(self) -> bool:
        """Whether the request was a chat."""
        return isinstance(self.request, ChatRequest)

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that come first."""
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.service.model_name,
            "system_fingerprint": f"monolane-{__version__}",
        }

    def usage(self) -> dict[str, Any]:
        """Return the tokens counted so far; each prompt once, however many answers it has."""
        run = self.run
        prompts = sum(clock.prompt_n for clock in run.clocks) // self.request.choices
        drawn = sum(
            clock.drawn
            for clock, choice in zip(run.clocks, run.choices, strict=True)
            if not choice.discard
        )
        return {
            "prompt_tokens": prompts,
            "completion_tokens": drawn,
            "total_tokens": prompts + drawn,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def timings(self, index: int) -> dict[str, Any]:
        """Return the ``timings`` of a choice as of now."""
        clock = self.run.clocks[index]
        moved = self.service.bytes_per_token(clock.prompt_n + clock.drawn // 2)
        return clock.timings(moved, self.service.bandwidth)

    def whole(self) -> bytes:
        """Return the reply of a run that is over and did not fail, as JSON.

        Choice by choice: one call for megabytes would keep all other threads waiting.
        """
        gathered = gather(self.run.channel.take(), self.run.choices)
        timings = [self.timings(got.choice.index) for got in gathered]
        choices = [
            json_bytes(
                {"index": got.choice.index}
                | self.shape.choice(got)
                | {"finish_reason": got.finish_reason, "timings": timed}
            )
            for got, timed in zip(gathered, timings, strict=True)
        ]
        head = json_bytes(self.head(self.shape.whole))[:-1]
        tail = json_bytes({"usage": self.usage(), "timings": timings[0]})[1:]
        return head + b',"choices":[' + b",".join(choices) + b"]," + tail


def json_bytes(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
