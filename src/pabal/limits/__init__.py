"""How often: limits shared by every process, kept in one row each."""

from pabal.limits.take import Limit, take

__all__ = ["Limit", "take"]
