"""Into how many parts the keys of a head are cut, so that workers have as much."""

from fractions import Fraction

# How much more the busiest worker may have, and how many parts a head may have for it.
UNITS_EVEN_ENOUGH = Fraction(9, 8)
MOST_SPLITS = 8


def choose_splits(heads: int, workers: int) -> int:
    """Return into how many parts the keys of each head are cut, so that workers have as much.

    As few as give everybody one; more, up to MOST_SPLITS, where the busiest worker would have more
    than his share by an eighth and has less by them: 3 heads of 2 workers are 2 and 1, in halves 3
    and 3. All workers add up the parts of all heads, so more than needed are not for nothing.
    """
    least = -(-workers // heads)

    def surplus(splits: int) -> Fraction:
        units = heads * splits
        return Fraction(-(-units // workers) * workers, units)

    choices = range(least, max(least, MOST_SPLITS) + 1)
    enough = next((s for s in choices if surplus(s) <= UNITS_EVEN_ENOUGH), None)
    return min(choices, key=surplus) if enough is None else enough
