"""What C++ throws, as errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from monolane.errors import BackendError, MonolaneError, RequestError


@contextmanager
def our_errors() -> Iterator[None]:
    """Turn what C++ throws into errors of ours: a wrong argument, or a call at the wrong time."""
    try:
        yield
    except MonolaneError:
        raise
    except ValueError as error:
        raise RequestError(str(error)) from None
    except MemoryError:
        raise BackendError("memory: expected more for what is kept, got none") from None
    except RuntimeError as error:
        raise BackendError(str(error)) from None
