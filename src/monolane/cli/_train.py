"""``monolane train``: make the demo model again, or one like it."""


def train() -> None:
    """Train."""
