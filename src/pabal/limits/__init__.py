"""How often: limits shared by every process, kept in one row each."""

from pabal.limits.take import Limit, forget, take

__all__ = ["Limit", "forget", "take"]
