"""How often: limits shared by every process, kept in one row each."""

from pabal.limits.take import Limit, Standing, forget, look, take

__all__ = ["Limit", "Standing", "forget", "look", "take"]
