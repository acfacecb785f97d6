"""Events: from one service to another, or to all its subscribers."""
