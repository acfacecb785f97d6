"""How often: limits shared by every process, kept in one row each."""

from pabal.limits.take import Limit, Standing, forget, held, hold, look, reserve, take
from pabal.limits.whose import whose

__all__ = ["Limit", "Standing", "forget", "held", "hold", "look", "reserve", "take", "whose"]
