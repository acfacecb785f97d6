"""Push: send events to the URLs of their subscribers, in fair shares and behind a circuit breaker."""
