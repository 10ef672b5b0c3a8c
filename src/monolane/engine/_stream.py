"""One answer as it comes: tokens from an epoch, turned into text beside the decode thread."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from monolane.engine._answer_history import EarlierAnswers
from monolane.engine._constrained_decoding import Constraint, Guidance
from monolane.engine._draft_stats import DraftCounts
from monolane.engine._parameters import SamplingParams
from monolane.engine._prefixes import Prefixes
from monolane.engine._prompt_logprobs import score
from monolane.engine._result import FinishReason, Generation, Piece, Timings
from monolane.engine._shared_executor import Request, SharedExecutor
from monolane.engine._slots import SlotPool
from monolane.executor_api import Advance, TokenEvent, TokenLogprob
from monolane.text import Detokenizer, StopStrings, Tokenizer


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: everything that a stream needs to run it."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    budget: int
    stop_ids: frozenset[int]
    vocab: int
    constraint: Constraint | None = None
    namespace: str = ""  # of the prefixes and answers that it may use and leave
    message_ends: frozenset[int] = frozenset()  # tokens that end messages of the prompt
    adapter: int = 0  # which of the executor's; 0: none
    suppressed: frozenset[int] = frozenset()  # tokens that are never drawn


class Stream(Iterator[Piece]):
    """The pieces of one answer; also a context manager. Closing it stops the decode.

    Work begins with the first piece asked for. ``finish_reason`` and ``timings`` are final once the
    last piece has been given; ``prompt_logprobs`` are there with the first.
    """

    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    namespace: str  # of what it takes from others and leaves them; may be changed before it begins

    def __init__(
        self,
        backend: SharedExecutor,
        slots: SlotPool,
        prefixes: Prefixes,
        earlier: EarlierAnswers,
        tokenizer: Tokenizer | None,
        job: Job,
        check_weights: Callable[[], None] = lambda: None,
        kept_under: Callable[[str, int], str] = lambda namespace, adapter: namespace,
    ) -> None:
        self._kept_under = kept_under  # where prefixes of an adapter are kept
        self._check_weights = check_weights  # raises once they are not those that were loaded
        self._backend, self._slots, self._job = backend, slots, job
        self._earlier = earlier
        self._prefixes, self.namespace = prefixes, job.namespace
        self._drawn: list[int] = []  # also those behind the end of the answer
        self._last: Piece | None = None  # once it is made
        self._text = _Text(tokenizer, job)
        self._token_count = self._cached = 0
        self._resumed = False  # what was kept of the prompt has been put into the slot
        self.drafts = DraftCounts()
        self._first_ns = self._last_ns = self._begin_ns = time.perf_counter_ns()
        self._cancelled = False
        self._slot: int | None = None  # while it holds one
        self._request: Request | None = None  # while it may be cancelled
        self._changing = threading.Lock()  # of the two above
        # A generator, so that an abandoned stream gives its slot back when it is collected.
        self._pieces = self._run()

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece, which another thread waits for."""
        import asyncio  # of an asynchronous caller it is loaded already

        try:
            piece = await asyncio.to_thread(next, self, None)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the decode within one token and free the slot. Harmless when it has ended."""
        self._pieces.close()
        if self.finish_reason is None:
            self.finish_reason = "cancelled"

    def gather(self) -> Piece | None:
        """Return what has come since the last piece, without a wait, while its reader sleeps.

        None where nothing has, where it is the last piece, which is left to the reader, or where
        each draw waits for a mask that the reader works out.
        """
        request = self._request
        if self._last is not None or request is None or not request.is_ready:
            return None
        if self._job.constraint is not None:
            return None
        piece = self._take(request.read())
        return piece if piece.finish_reason is None else None

    @property
    def is_ending(self) -> bool:
        """Whether the last piece was gathered, and its reader is to go on."""
        return self._last is not None

    def await_end(self, until: Callable[[], bool]) -> None:
        """Wait until the last token has come or the stream was cancelled, or ``until`` says so.

        For who reads the pieces, while another thread gathers them; ``until`` is asked by ``wake``.
        """
        if self._request is not None:
            self._request.await_end(until)

    def wake(self) -> None:
        """Have who awaits the end look whether to go on; from any thread."""
        request = self._request
        if request is not None:
            request.wake()

    def cancel(self) -> None:
        """Have the decode stop within one token, from any thread; the pieces end there.

        One that waits for others to end gives none.

        Unlike ``close``, which is for the thread that reads the pieces.
        """
        with self._changing:
            self._cancelled = True
            if self._request is not None:
                self._request.cancel()
        self._slots.wake()  # it may wait for one

    @property
    def position(self) -> int:
        """Tokens of prompt and answer in its slot by now, 0 without one; from any thread.

        A long prompt shows by it that it moves, before there is any piece.
        """
        slot = self._slot
        return 0 if slot is None else self._backend.length(slot)

    @property
    def params(self) -> SamplingParams:
        """How it draws."""
        return self._job.params

    @property
    def read_tokens(self) -> int | None:
        """Tokens of the prompt that its slot holds by now; from any thread.

        None until it is known how many of them were kept, and once the slot is given back.
        """
        slot = self._slot
        if slot is None or not self._resumed:
            return None
        return min(self._backend.length(slot), len(self._job.prompt_ids))

    @property
    def thinking_tokens(self) -> int:
        """Tokens drawn so far that the thinking part is made of, marks included."""
        return self._text.thinking_tokens

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended the answer; None if none did."""
        return self._text.stop_text

    @property
    def timings(self) -> Timings:
        """Timings so far; of the whole answer once it has ended."""
        return Timings(
            prompt_tokens=len(self._job.prompt_ids),
            generated_tokens=self._token_count,
            time_to_first_token=(self._first_ns - self._begin_ns) / 1e9,
            decode_seconds=(self._last_ns - self._first_ns) / 1e9,
            cache_n=self._cached,
            draft_n=self.drafts.tokens,
            draft_n_accepted=self.drafts.accepted,
            drafters={name: dict(counts) for name, counts in self.drafts.by.items()},
        )

    def result(self) -> Generation:
        """Run to the end and return the whole answer, from the next piece on."""
        pieces = list(self)
        return Generation(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.token_ids),
            self.finish_reason or "cancelled",
            self.timings,
            tuple(logprob for piece in pieces for logprob in piece.logprobs),
            self.prompt_logprobs,
            "".join(piece.thinking for piece in pieces),
        )

    def _run(self) -> Generator[Piece, None, None]:
        self._begin_ns = time.perf_counter_ns()
        slot = self._slots.take(lambda: self._cancelled)
        if slot is None:
            self.finish_reason = "cancelled"
            return
        try:
            self._check_weights()
            self._backend.empty(slot, self._job.adapter)
            self._slot = slot
            prompt_ids = self._read_prompt(slot)
            request = self._backend.start(self._advance(slot, prompt_ids))
            self._watch(request)
            try:
                guidance = self._guidance(request)
                if guidance is not None and guidance.begin():
                    self.finish_reason = "stop"
                    self._last = Piece("", (), (), "stop")
                while self._last is None and not self._cancelled and (events := request.read()):
                    # The next mask first: a pass that may need it is running already.
                    over = guidance is not None and guidance.follow(events)
                    piece = self._take(events, over)
                    if piece.finish_reason is None:
                        yield piece
            finally:
                self._watch(None)
                request.stop()
            self._check_weights()  # before anything that was read of others is kept
            self._keep(slot)
            self._earlier.add(self.namespace, len(self._job.prompt_ids), self._drawn)
        finally:
            self._slot = None
            self._slots.give(slot)
        if self._last is None and self._cancelled:
            self.finish_reason = "cancelled"
        # Only now: a caller that stops at the last piece and asks for no other holds no slot.
        if self._last is not None:
            yield self._last

    def _read_prompt(self, slot: int) -> tuple[int, ...]:
        """Have the slot hold the beginning of the prompt, known or read; return what is left of it.

        Scores need the logits of every token, so a prompt that is scored is read anew.
        """
        params, prompt_ids = self._job.params, self._job.prompt_ids
        if params.prompt_logprobs is not None:
            scores = score(
                self._backend, slot, prompt_ids, params.prompt_logprobs, lambda: self._cancelled
            )
            self.prompt_logprobs = tuple(scores)
            return prompt_ids[self._backend.length(slot) :]
        resumed = self._prefixes.resume(self._prefix_name, slot, prompt_ids, self._job.message_ends)
        begin = self._cached = resumed.length
        self._resumed = True
        for cut in resumed.cuts:
            if not self._cancelled:
                self._feed(slot, begin, cut)
                self._keep(slot)
                begin = cut
        return prompt_ids[self._backend.length(slot) :]

    def _feed(self, slot: int, begin: int, end: int) -> None:
        """Read tokens and draw nothing that counts: the one token of this request is never fed."""
        ids = self._job.prompt_ids
        request = self._backend.start(
            Advance(slot=slot, token_ids=ids[begin:end], history=ids[:begin], budget=1)
        )
        self._watch(request)
        try:
            while request.read():
                pass
        finally:
            self._watch(None)
            request.stop()

    @property
    def _prefix_name(self) -> str:
        return self._kept_under(self.namespace, self._job.adapter)

    def _keep(self, slot: int) -> None:
        self._prefixes.keep(self._prefix_name, slot, (*self._job.prompt_ids, *self._drawn))

    def _advance(self, slot: int, token_ids: tuple[int, ...]) -> Advance:
        """Return what the request asks behind the tokens that its slot holds."""
        params, prompt_ids = self._job.params, self._job.prompt_ids
        return Advance(
            slot=slot,
            token_ids=token_ids,
            history=prompt_ids[: len(prompt_ids) - len(token_ids)],
            prompt=len(prompt_ids),
            budget=self._job.budget,
            draw=params.draw.without(self._job.suppressed),
            stop_ids=self._job.stop_ids,
            logprobs=params.logprobs,
            guided=self._job.constraint is not None,
            drafts=params.drafts,
            drafter=params.drafter,
            earlier=self._earlier.texts(self.namespace, prompt_ids) if params.drafts else (),
        )

    def _watch(self, request: Request | None) -> None:
        with self._changing:
            self._request = request
            if request is not None and self._cancelled:
                request.cancel()

    def _guidance(self, request: Request) -> Guidance | None:
        job = self._job
        if job.constraint is None:
            return None
        singly = job.params.logprobs is not None
        return Guidance(job.constraint, request, job.vocab, job.stop_ids, singly=singly)

    def _take(self, events: list[TokenEvent], over: bool = False) -> Piece:
        """Make the next piece, and note it if it is the last."""
        self._drawn += [event.token_id for event in events]
        piece = self._piece(events, over)
        if piece.finish_reason is not None:
            self._last = piece
        return piece

    def _piece(self, events: list[TokenEvent], over: bool) -> Piece:
        if self._token_count == 0:
            self._first_ns = events[0].time_ns
        # Tokens that were drawn behind a stop text, before the decode could be stopped, are not
        # part of the answer.
        thinking, text, used, reason = self._text.take(
            [event.token_id for event in events], self._token_count, over
        )
        events = events[:used]
        self.drafts.add(events)
        self._token_count += used
        self._last_ns = events[-1].time_ns
        self.finish_reason = reason
        logprobs = tuple(event.logprob for event in events if event.logprob is not None)
        return Piece(
            text,
            tuple(event.token_id for event in events),
            logprobs,
            reason,
            tuple(event.time_ns for event in events),
            thinking,
        )


class _Text:
    """Text of an answer, cut at the first stop text; which token ends it, and why."""

    def __init__(self, tokenizer: Tokenizer | None, job: Job) -> None:
        self._job = job
        thinking = None if tokenizer is None else job.params.thinking
        self._thinking = None if thinking is None else thinking.split()
        self.thinking_tokens = 0
        self._undecided = 0  # tokens that may be the beginning of a thinking part
        visible = set(job.params.visible_ids)
        if tokenizer is not None and thinking is not None:
            # Gemma's mark is a control token and a word.
            spelled = map(tokenizer.control_spellings.first, thinking.marks)
            marks = (tokenizer.id_of(mark) for mark in spelled if mark is not None)
            visible.update(token for token in marks if token is not None)
        self._detokenizer = (
            None
            if tokenizer is None
            else Detokenizer(tokenizer, context=job.prompt_ids, visible_ids=visible)
        )
        self._stops = StopStrings(job.params.stop)

    @property
    def stop_text(self) -> str | None:
        """The stop text that was found; None if none was."""
        return self._stops.matched

    def take(
        self, token_ids: list[int], count: int, over: bool
    ) -> tuple[str, str, int, FinishReason | None]:
        """Return (thinking, text, how many tokens belong to the answer, why it ends or None).

        ``count`` tokens were taken before; ``over``: nothing may follow the last. Goes token by
        token, so that the answer ends with the same token however many arrive at once.
        """
        thoughts: list[str] = []
        pieces: list[str] = []
        used = 0
        reason: FinishReason | None = None
        for used, token in enumerate(token_ids, 1):
            if token in self._job.stop_ids:
                reason = "stop"
            else:
                thought, text, stopped = self._push(token)
                thoughts.append(thought)
                pieces.append(text)
                if stopped:
                    reason = "stop"
                    break
                if over and used == len(token_ids):
                    reason = "stop"
                elif count + used == self._job.budget:
                    reason = "length"
            if reason is not None:
                thought, text, stopped = self._finish()
                thoughts.append(thought)
                pieces.append(text)
                reason = "stop" if stopped else reason
                break
        return "".join(thoughts), "".join(pieces), used, reason

    def _push(self, token: int) -> tuple[str, str, bool]:
        if self._detokenizer is None:
            return "", "", False
        text = self._detokenizer.push((token,))
        thought = ""
        if (split := self._thinking) is not None:
            self._undecided += not split.over
            thought, text = split.push(text)
            if split.begun:
                self.thinking_tokens += self._undecided
                self._undecided = 0
        return (thought, *self._stops.push(text))

    def _finish(self) -> tuple[str, str, bool]:
        if self._detokenizer is None:
            return "", "", False
        text, thought = self._detokenizer.finish(), ""
        if self._thinking is not None:
            thought, text = self._thinking.push(text)
            last, held = self._thinking.finish()
            thought, text = thought + last, text + held
        text, stopped = self._stops.push(text)
        return thought, text if stopped else text + self._stops.finish(), stopped
