"""How a figure is spelled: as many digits as it is good for."""


def spelled(value: float) -> str:
    """Return four digits, or all before the point where they are more: 0.4712, 3,147, 10,929."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
